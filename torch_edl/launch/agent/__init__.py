"""The agent starts and watches the workers of a script on one machine, and reports to the master.

Environment, logs and error files are those of torchrun. Unlike torchrun, the agent replaces a lost
worker without restarting the others. Rings, data and options belong to other packages: the master,
the worker and the command line.
"""
