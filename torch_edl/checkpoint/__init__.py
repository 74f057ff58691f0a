"""Checkpoints of every strategy in one format: manifest, layout of folders, writer, reader, export.

No sockets and no torch here, and no decision when a checkpoint is taken.
"""
