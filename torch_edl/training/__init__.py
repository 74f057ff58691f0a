"""The worker of a model file: the one training loop, its sources of updates, and evaluation.

Of no framework: the backends in ``torch_edl.pytorch`` and ``tf_compat`` bring the models.
"""
