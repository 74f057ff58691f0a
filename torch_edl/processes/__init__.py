"""Start, watch, signal and reap processes, for the command line, the master and the nodes.

The callers decide which processes run. Of a job, the package knows the names of its processes
(``worker-3``) and the token by which they are found. It never imports torch.
"""
