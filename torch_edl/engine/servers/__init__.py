"""Engine of the strategy ``ps``: the model is on parameter servers.

The package has no collectives and no data loop.
"""
