"""The engine of the strategy ``ps``: the model is on parameter servers.

No collectives here, and no loop over data.
"""
