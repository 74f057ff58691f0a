"""A log on a disk: a folder of segments and snapshots, and its ownership.

Nothing here knows the order of a log, or another process than the owners of the folder.
"""
