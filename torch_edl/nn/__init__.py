"""Embedding modules whose rows are in a hash table, in this process or on parameter servers.

The package looks up and differentiates rows. It does not communicate with servers and knows no job.
"""

from torch_edl.nn.embedding import Embedding, EmbeddingBag

__all__ = ["Embedding", "EmbeddingBag"]
