"""Whole requests: what they do to many tables at once is what single calls do to each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.tables.core_tables import core_table
from torch_edl import _core

pytestmark = pytest.mark.usefixtures("storage")

RNG = np.random.default_rng(11)
TABLES = [("a", 3, 50), ("b", 1, 0), ("c", 16, 4000)]  # name, dim, ids of a request


def tables(**options: Any) -> list[_core.Table]:
    adagrad = _core.Optimizer("adagrad", {"lr": 0.1})
    return [
        core_table(name, dim, "normal", {"std": 1.0}, 5, adagrad, **options)
        for name, dim, _ in TABLES
    ]


def moved(content: bytes) -> memoryview:
    """The same, at an odd address."""
    return memoryview(b"x" + content)[1:]


IDS = [RNG.permutation(10_000)[:n] for _, _, n in TABLES]
GRADIENTS = [RNG.standard_normal((n, dim), np.float32) for _, dim, n in TABLES]


@pytest.mark.parametrize("lie", [memoryview, moved, bytes])
def test_rows_of_many_tables(lie: Any) -> None:
    lookups = [(t, lie(ids.tobytes())) for t, ids in zip(tables(), IDS, strict=True)]
    for name, dtype in (("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        found = _core.pull_tables(lookups, name)
        for rows, table, ids, (_, dim, n) in zip(found, tables(), IDS, TABLES, strict=True):
            wanted = table.pull(ids)
            assert rows.shape == (n, dim)
            if dtype is not None:
                wanted = torch.from_numpy(wanted.copy()).to(dtype).view(torch.uint16).numpy()
            assert rows.tobytes() == wanted.tobytes()
    assert [t.size for t, _ in lookups] == [n for _, _, n in TABLES]


def test_a_pull_that_reads_only_makes_no_rows() -> None:
    made = tables()
    lookups = [(t, ids.tobytes()) for t, ids in zip(made, IDS, strict=True)]
    _core.pull_tables(lookups, read_only=True)
    assert [t.size for t in made] == [0, 0, 0]


@pytest.mark.parametrize("lie", [memoryview, moved, bytes])
def test_updates_of_many_tables(lie: Any) -> None:
    together, single = tables(), tables()
    decoded = _core.decode_gradients(
        [
            (t, lie(ids.tobytes()), lie(values.tobytes()), "fp32")
            for t, ids, values in zip(together, IDS, GRADIENTS, strict=True)
        ]
    )
    for (ids, values), wanted, gradient in zip(decoded, IDS, GRADIENTS, strict=True):
        assert ids.tolist() == wanted.tolist()
        assert values.tobytes() == gradient.tobytes()
    for step in (1, 2):
        evicted = _core.push_tables(
            [(t, *each, 0.1, step, False) for t, each in zip(together, decoded, strict=True)]
        )
        assert [e.tolist() for e in evicted] == [[], [], []]
        for table, ids, values in zip(single, IDS, GRADIENTS, strict=True):
            table.push(ids, values, 0.1, step)
    for one, other, ids in zip(together, single, IDS, strict=True):
        assert (one.pull(ids) == other.pull(ids)).all()


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_short_gradients_are_widened(name: str, dtype: torch.dtype) -> None:
    short = torch.from_numpy(GRADIENTS[2]).to(dtype)
    content = short.view(torch.uint16).numpy().tobytes()
    for lie in (bytes, moved):
        ((_, values),) = _core.decode_gradients(
            [(tables()[2], IDS[2].tobytes(), lie(content), name)]
        )
        assert values.tobytes() == short.float().numpy().tobytes()


def test_decoded_gradients_outlive_what_the_caller_forgets() -> None:
    table = tables()[2]
    ((ids, values),) = _core.decode_gradients(
        [(table, memoryview(IDS[2].tobytes()), memoryview(GRADIENTS[2].tobytes()), "fp32")]
    )
    others = [bytes(len(IDS[2]) * 8) for _ in range(50)]
    assert ids.tolist() == IDS[2].tolist()
    assert values.tobytes() == GRADIENTS[2].tobytes()
    del others


def test_an_update_evicts_what_it_makes_room_for() -> None:
    (table, *_) = tables(max_rows=10)
    ids, ones = np.arange(50), np.ones((50, 3), np.float32)
    (evicted,) = _core.push_tables([(table, ids, ones, 0.1, 1, False)])
    (none,) = _core.push_tables([(table, ids[:1], ones[:1], 0.1, 2, False)], evict=False)
    assert len(evicted) > 0
    assert table.size == 50 - len(evicted) + (0 in evicted)
    assert none.tolist() == []


def test_what_is_wrong_is_named_before_anything_changes() -> None:
    made = tables(num_embeddings=10_000)
    good = (made[0], IDS[0].tobytes(), GRADIENTS[0].tobytes(), "fp32")
    ids, ones = np.array([1, 2]).tobytes(), np.ones((2, 16), np.float32)
    nan = ones.copy()
    nan[1, 3] = np.nan
    outside = np.array([1, 10_000]).tobytes()
    for bad, text in (
        ((made[2], ids[:-1], ones.tobytes(), "fp32"), "ids of 15 bytes"),
        ((made[2], ids, ones.tobytes()[:-1], "fp32"), "127 bytes; 2 ids need 128"),
        ((made[2], ids, ones.tobytes(), "fp16"), "128 bytes; 2 ids need 64"),
        ((made[2], ids, nan.tobytes(), "fp32"), "the gradient of id 2 has the value nan"),
        ((made[2], outside, ones.tobytes(), "fp32"), "id 10000 is outside"),
        ((made[2], ids, ones.tobytes(), "int8"), "dtype int8: only for rows in a table"),
    ):
        with pytest.raises(ValueError, match=text):
            _core.decode_gradients([good, bad])
    with pytest.raises(ValueError, match="ids of 15 bytes"):
        _core.pull_tables([(made[2], ids[:-1])])
    with pytest.raises(ValueError, match="dtype int8: only for rows in a table"):
        _core.pull_tables([(made[2], ids)], "int8")
    with pytest.raises(ValueError, match="id 10000 is outside"):
        _core.pull_tables([(made[2], outside)])
    with pytest.raises(ValueError, match="step 0"):
        _core.push_tables([(made[2], np.array([1, 2]), ones, 0.1, 0, False)])
    assert [t.size for t in made] == [0, 0, 0]
