"""A node supervises the processes of a job on one machine or in one pod. It starts, watches and
ends the processes that the master names. It forks workers from a child process, the fork server,
which has already imported the framework.

A node makes no decisions. Of the modules of this package, only the fork server imports a framework.
"""
