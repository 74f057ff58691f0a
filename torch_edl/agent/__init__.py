"""The agent: starts the workers of a script on one machine, watches them, and tells the master.

Processes, logs and error files are torch.distributed.elastic's; what differs is that a worker that
is lost is replaced alone. No ring, no data, no options: those are the master's, the worker's and
the command line's.
"""
