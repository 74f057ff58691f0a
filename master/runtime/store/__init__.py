"""Where the master keeps its state: a key-value store with compare-and-set and a lock with fencing.

What the state means is decided elsewhere; nothing here knows of tasks or workers.
"""
