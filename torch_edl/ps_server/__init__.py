"""The process that holds one shard of the model: RPCs, updates, snapshots.

Nothing here knows other servers but the peer of a replica, or tasks beyond their watermarks. Never
imports torch.
"""
