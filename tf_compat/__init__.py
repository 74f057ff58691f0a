"""The TensorFlow backend: workers that train Keras models with the common master and servers.

This package does not import torch, and no master, server or torch worker imports this package.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_compat.embedding import Embedding

# Hides notes about the processor that TensorFlow logs at its import. The note about oneDNN has no
# level; only TF_ENABLE_ONEDNN_OPTS=0 hides it, which changes numerical results.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

__all__ = ["Embedding"]


def __getattr__(name: str) -> Any:
    # Imported when it is used: the client imports tf_compat.backend without TensorFlow.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tf_compat import embedding

    return embedding.Embedding
