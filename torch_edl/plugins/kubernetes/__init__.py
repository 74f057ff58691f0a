"""The platform ``kubernetes``: the master, the servers and the workers of a job are pods."""
