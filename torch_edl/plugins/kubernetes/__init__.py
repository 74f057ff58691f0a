"""The platform ``kubernetes``: the master, the servers and the workers of a job are pods.

``platform.py`` is the entry point; ``config.py`` has the options. ``client/`` runs in commands,
``master/`` in the pod of the master; both work on ``objects/`` through ``cluster/``.
"""
