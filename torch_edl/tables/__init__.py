"""Embedding tables, dense parameters, optimizer kernels and watermarks, on top of the C++ core.

Parameter servers and single-process training share this package. The package has no sockets and no
processes, and does not import torch.
"""
