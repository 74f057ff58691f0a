"""Communication between processes: message schemas, tensor codec, channels and servers.

The package does not know what a task or a table is for. It never imports torch.
"""
