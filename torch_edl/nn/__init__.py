"""Embedding modules whose rows live in a hash table: in this process, or on parameter servers.

How rows are found and differentiated; nothing here speaks to a server or knows a job.
"""

from torch_edl.nn.embedding import Embedding, EmbeddingBag

__all__ = ["Embedding", "EmbeddingBag"]
