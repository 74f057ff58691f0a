"""The interface of training scripts: the job, its loader and the trainer class.

This package computes no gradients and opens no sockets. Model files do not use it.
"""
