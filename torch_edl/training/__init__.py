"""The training loop, its sources of updates, evaluation, and the worker process of a model file.

This package imports no framework. The backends ``torch_edl.pytorch`` and ``tf_compat`` provide the
models.
"""
