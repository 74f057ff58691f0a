"""The master of one job: tasks, membership, which processes run, evaluation, checkpoints, status.

Decides in pure modules (state, event, now), acts in service and __main__. Never imports torch.
"""
