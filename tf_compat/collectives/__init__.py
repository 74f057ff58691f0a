"""Sums of NumPy arrays over the members of a ring, since TensorFlow's collectives need a fixed
cluster.

``streams`` connects two processes, ``stream_listener`` keeps the streams of the other members until
a ring takes them, and ``stream_group`` sums arrays. This package does not import TensorFlow.
"""
