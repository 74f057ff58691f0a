"""The store of a job's state: keys with values, and a lock that fences former owners.

:class:`torch_edl.interfaces.Store` is the interface, ``sqlite.py`` the built-in implementation, and
``lock.py`` works with any. Nothing here knows of tasks or workers.
"""
