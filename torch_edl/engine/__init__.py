"""Engines turn gradients into parameter updates: one per strategy, and the choice of a strategy.

The package knows no leases and reads no data files. This module imports nothing, because the master
uses ``choose`` and starts without torch.
"""
