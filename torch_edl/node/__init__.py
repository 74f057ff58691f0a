"""A node supervises the processes of a job on one machine or in one pod: it starts, watches and
ends those that the master names, and forks workers from a child that has imported the framework.

Nothing is decided here, and no process but that child imports a framework.
"""
