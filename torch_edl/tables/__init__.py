"""Rows, dense parameters, optimizer kernels and watermarks: what servers and laptops share.

No sockets, no torch and no processes here; the C++ core is below.
"""
