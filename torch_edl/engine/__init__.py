"""How gradients become parameters: one file per strategy, and the choice among them.

No leases and no files of data here; and this module imports nothing, since the master reads
``choose`` and starts without torch.
"""
