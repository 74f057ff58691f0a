from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from torch_edl.data.batch import BatchError, length, slice_tensors
from torch_edl.data.trees import leaves, transform


class Pair(NamedTuple):
    first: Any
    second: Any


class Fixed(Mapping[str, Any]):
    """A mapping without assignment."""

    def __init__(self, **parts: Any) -> None:
        self._parts = parts

    def __getitem__(self, key: str) -> Any:
        return self._parts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class Own(Fixed, MutableMapping[str, Any]):
    """A mapping of which a copy shares the content."""

    def __setitem__(self, key: str, value: Any) -> None:
        self._parts[key] = value

    def __delitem__(self, key: str) -> None:
        del self._parts[key]


class TensorMap(UserDict[str, Any]):
    """A tensor that is a mapping too, such as a ``TensorDict``."""

    shape, dtype = (4,), np.dtype("float32")


def test_leaves_have_their_places_in_the_order_of_keys() -> None:
    tree = {"b": [1, (2, "x")], "a": Pair(None, Fixed(k=3)), 7: {}}
    assert list(leaves(tree)) == [
        (("a", 0), None),
        (("a", 1, "k"), 3),
        (("b", 0), 1),
        (("b", 1, 0), 2),
        (("b", 1, 1), "x"),
    ]
    assert list(leaves(5)) == [((), 5)]


def test_nodes_keep_their_types_and_the_tree_is_unchanged() -> None:
    tree = OrderedDict(z=[1, (2,)], a=Pair(3, Fixed(k=4)), u=UserDict(v=5))
    made = transform(tree, lambda leaf: leaf * 10)
    assert made == OrderedDict(z=[10, (20,)], a=Pair(30, {"k": 40}), u=UserDict(v=50))
    assert [type(made), type(made["a"]), type(made["u"])] == [OrderedDict, Pair, UserDict]
    assert list(made) == ["z", "a", "u"]
    assert tree["z"] == [1, (2,)]
    assert tree["u"] == {"v": 5}


def test_a_mapping_that_shares_its_content_with_copies_is_unchanged() -> None:
    tree = Own(a=np.arange(4))
    for first in (0, 2):
        made = slice_tensors(tree, first, first + 2, lambda array: array.tolist())
        assert made == {"a": [first, first + 1]}
    assert tree["a"].tolist() == [0, 1, 2, 3]


def test_a_tensor_is_a_leaf_also_if_it_is_a_mapping() -> None:
    tensor = TensorMap(k=1)
    assert list(leaves((tensor,))) == [((0,), tensor)]
    assert transform([tensor], lambda leaf: leaf is tensor) == [True]
    assert length({"t": tensor, "x": np.zeros((4, 2))}) == 4


def test_slices_of_all_tensors() -> None:
    tree = {"a": np.arange(5), "b": [np.eye(5)]}
    made = slice_tensors(tree, 1, 3, lambda array: array.tolist())
    assert made == {"a": [1, 2], "b": [np.eye(5)[1:3].tolist()]}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ((), "tuple where a tensor is expected"),
        ({"a": {}}, "dict where a tensor is expected"),
        ([np.zeros(3), "x"], "str where a tensor is expected"),
        (np.float32(1), "a scalar"),
        ((np.zeros(3), {"a": np.zeros(2)}), r"parts with \[2, 3\] samples"),
    ],
)
def test_trees_that_are_no_minibatch(tree: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        length(tree)
