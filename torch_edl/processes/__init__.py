"""Starting, watching and stopping processes: one interface, one file per place they can run.

Nothing here decides which processes there should be; that is the master's. Never imports torch.
"""
