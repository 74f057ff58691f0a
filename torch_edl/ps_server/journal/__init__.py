"""The log of a shard on a disk: segments of records, and whose they are.

Nothing here knows what a record means, or the shard that it changes.
"""
