"""What a command does with a job in pods: checks, starts, follows, reads logs, removes.

Only the modules for commands import :mod:`torch_edl.cli`; no pod runs them.
"""
