"""Trees of tensors: what a minibatch consists of.

A mapping, tuple or list is a node. Any other value is a leaf, and so is a tensor of any framework:
an object with a shape and a dtype, such as a ``TensorDict``. A library such as optree knows only
registered types of mappings, and batches of users have many (``BatchEncoding`` of transformers).
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def is_tensor(value: Any) -> bool:
    """Return True if a value is a tensor of any framework."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each leaf with the keys and indices that lead to it. Keys of a mapping are visited in
    the order of their texts, so that the order of insertion does not matter."""
    if is_tensor(tree):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key in sorted(tree, key=str):
            yield from leaves(tree[key], (*path, key))
    elif isinstance(tree, tuple | list):
        for number, part in enumerate(tree):
            yield from leaves(part, (*path, number))
    else:
        yield path, tree


def transform(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of a tree, with ``function`` applied to each leaf. Nodes keep their types,
    except for mappings that derive neither from dict nor from UserDict, which become dicts: a copy
    of another mapping may share its content."""
    if is_tensor(tree):
        return function(tree)
    if isinstance(tree, Mapping):
        made: Any = copy.copy(tree) if isinstance(tree, dict | UserDict) else {}
        for key, part in tree.items():
            made[key] = transform(part, function)
        return made
    if isinstance(tree, tuple | list):
        parts = [transform(part, function) for part in tree]
        if isinstance(tree, list):
            return parts
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return function(tree)
