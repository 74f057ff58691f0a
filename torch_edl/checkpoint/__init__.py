"""Checkpoints of every strategy in one format: manifest, layout of folders, writer, reader, export.

No sockets and no torch here; nothing that decides when a checkpoint is taken.
"""
