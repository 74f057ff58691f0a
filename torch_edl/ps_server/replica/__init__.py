"""The log of a shard at a peer server, and the copy that a server keeps of another shard.

Nothing here applies a record.
"""
