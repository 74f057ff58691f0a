"""The node of a script: it runs in the process of ``torch-edl run``, and shows the job there.

Environment, logs and error files of the workers are those of torchrun. Unlike torchrun, a lost
worker is replaced without a restart of the others. Decisions are those of the master, as for any
node.
"""
