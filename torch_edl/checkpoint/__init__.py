"""Checkpoints of every strategy in one format: manifest, layout of folders, writer, reader, export;
and the durable replacement of files, which all that is written rests on.

No sockets and no torch here, and no decision when a checkpoint is taken.
"""
