"""Turns columns of records into inputs of a model: hashes, vocabularies, buckets, scaled numbers.

Fitted steps need one pass over the data, whose statistics can be merged in any order. No module
here imports torch, TensorFlow or sockets, so that any worker and the master can import the package.
"""

from torch_edl.plugins.preprocessing.columns import Columns

__all__ = ["Columns"]
