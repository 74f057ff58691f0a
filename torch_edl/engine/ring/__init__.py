"""The engine of the strategy ``allreduce``: a ring of replicas that survives its members.

No parameter servers here, and no loop over data.
"""
