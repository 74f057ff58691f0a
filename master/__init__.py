"""The master of one job: tasks, membership, processes, evaluation, checkpoints, status.

``state`` decides (state machines without I/O), ``runtime`` acts. Never imports torch.
"""
