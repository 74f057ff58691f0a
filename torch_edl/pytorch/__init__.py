"""The backend of PyTorch: model files, gradient hooks, replicas and collectives.

``tf_compat`` is the corresponding backend of Keras. Code that trains a torch model and imports
torch is in this package, in ``torch_edl.nn``, in ``torch_edl.optim`` (FTRL and compiled kernels),
in ``torch_edl.metrics`` (mergeable metrics) or in ``torch_edl.api``.
"""
