"""Engines turn gradients into parameter updates: one per strategy, and the choice of a strategy.

Engines take updates with their leases from the training loop. They request no leases from the
master and read no data files. The package imports no framework, because the master uses
``choose_strategy`` and starts without torch.
"""
