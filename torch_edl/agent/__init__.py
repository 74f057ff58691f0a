"""The agent: starts the workers of a script on one machine, watches them, and tells the master.

Environment, logs and error files are those of torchrun; unlike there, a lost worker is replaced
alone. No ring, no data, no options: those are the master's, the worker's and the command line's.
"""
