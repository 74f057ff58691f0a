"""The log of a shard, and the places that keep it: a disk, or a peer server.

Nothing here interprets a record, or knows the shard that it changes.
"""
