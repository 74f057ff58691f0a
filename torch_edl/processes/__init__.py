"""Starting, watching, signalling and reaping processes, for the client, the master and the agent.

No jobs here: which processes there should be is decided by the callers. Never imports torch.
"""
