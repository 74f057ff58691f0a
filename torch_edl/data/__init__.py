"""The data path of a worker: sources of records, leased tasks, and minibatches.

This package has no gradients, servers or model files. Modules in ``sources`` must not import torch.
"""
