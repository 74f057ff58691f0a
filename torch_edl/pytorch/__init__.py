"""The backend of PyTorch: model files, gradient hooks, replicas and collectives.

``tf_compat`` is its twin for Keras. All that trains a model of torch and imports torch is
here, in ``torch_edl.nn`` or in ``torch_edl.api``.
"""
