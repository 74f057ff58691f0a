"""The log of a shard on a disk: segments of records, and their ownership.

Nothing here interprets a record, or knows the shard that it changes.
"""
