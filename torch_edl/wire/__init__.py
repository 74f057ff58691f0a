"""What travels between processes: schemas, tensor codec, channels and servers with deadlines.

No policy here: nothing knows what a task or a table is for. Never imports torch.
"""
