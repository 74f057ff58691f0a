"""The TensorFlow backend: workers that train Keras models, with the master and the servers of all.
No torch here, and nothing that a master, a server or a worker of torch imports.
"""

import os

# Without the notes on the processor, which TensorFlow writes when it is imported. The one on oneDNN
# has no level: only TF_ENABLE_ONEDNN_OPTS=0 ends it, which changes numbers.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from tf_compat.embedding import Embedding

__all__ = ["Embedding"]
