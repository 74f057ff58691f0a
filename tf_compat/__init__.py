"""The TensorFlow backend: workers that train Keras models with the common master and servers.

This package does not import torch, and no master, server or torch worker imports this package.
"""

import os

# Hides notes about the processor that TensorFlow logs at its import. The note about oneDNN has no
# level; only TF_ENABLE_ONEDNN_OPTS=0 hides it, which changes numerical results.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from tf_compat.embedding import Embedding

__all__ = ["Embedding"]
