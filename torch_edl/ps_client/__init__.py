"""The caller's side of the parameter servers: partitioning, and one pull and one push per step.

Arrays in, arrays out; nothing here knows a module or a task queue. Never imports torch.
"""
