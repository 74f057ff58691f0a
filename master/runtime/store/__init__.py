"""Where the master keeps its state: keys with values, and a lock that fences its last owner off.

What the state means is decided elsewhere; nothing here knows of tasks or workers. ``base.py`` is
the interface, ``sqlite.py`` and ``etcd.py`` implement it, and ``lock.py`` works with both.
"""
