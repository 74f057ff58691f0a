"""Start, watch, signal and reap processes, for the command line, the master and the agent.

The package knows nothing of jobs: its callers decide which processes run. It never imports torch.
"""
