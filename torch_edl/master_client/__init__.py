"""A worker's connection to the master: session, heartbeat and leases.

The package does not train and does not import torch.
"""
