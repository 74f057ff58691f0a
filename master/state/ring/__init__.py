"""Rings of the strategy ``allreduce``: their members, and what each member may do."""
