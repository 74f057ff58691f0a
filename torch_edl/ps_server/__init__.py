"""The parameter server: the process that holds one shard of the model. RPCs, updates, snapshots.

Knows no other server except the peer of its replica, and of tasks only their watermarks. Never
imports torch.
"""
