"""The dense values of a shard as of one moment, while updates go on."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from torch_edl.tables.dense import PIECE, DenseShard
from torch_edl.tables.optimizers import BUFFER, Optimizers
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb

# Pieces begin and end within parameters, and parameters within pieces.
SIZES = {"a": 10, "b": 2 * PIECE + 3, "c": PIECE // 2}


def shard() -> DenseShard:
    group = pb.ParamGroup(hyper={"lr": 0.5})
    optimizers = Optimizers.from_proto(pb.OptimizerConfig(kind="adagrad", groups=[group]))
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(size, np.float32) for name, size in SIZES.items()}
    parameters = [
        *(pb.DenseParameter(name=n, value=codec.to_proto(v)) for n, v in values.items()),
        pb.DenseParameter(name="d", group=BUFFER, value=codec.to_proto(np.ones(7, np.float32))),
        pb.DenseParameter(name="e", group=BUFFER, value=codec.to_proto(np.zeros(1, np.int64))),
    ]
    return DenseShard(parameters, optimizers)


def gradient(of: DenseShard, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(of.flat.size, np.float32)


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("untouched", [set(), {1}, {0, 2}])
def test_a_snapshot_is_the_state_as_it_was(untouched: set[int]) -> None:
    dense, undisturbed = shard(), shard()
    for of in (dense, undisturbed):
        of.apply(gradient(of, 1), [0.5])
    state = dense.begin_snapshot()
    dense.apply(gradient(dense, 2), [0.5], untouched)
    dense.assign_exact({"e": np.ones(1, np.int64)})
    dense.apply(gradient(dense, 3), [0.5])
    same(state(), undisturbed.begin_snapshot()())
    # The updates are those that they would have been without the snapshot.
    undisturbed.apply(gradient(dense, 2), [0.5], untouched)
    undisturbed.assign_exact({"e": np.ones(1, np.int64)})
    undisturbed.apply(gradient(dense, 3), [0.5])
    same(dense.begin_snapshot()(), undisturbed.begin_snapshot()())


def test_a_snapshot_that_is_copied_during_updates_is_of_one_moment() -> None:
    dense, undisturbed = shard(), shard()
    stop = threading.Event()

    def push() -> None:
        step = 0
        while not stop.is_set():
            step += 1
            dense.apply(gradient(dense, step), [0.5])

    thread = threading.Thread(target=push)
    thread.start()
    try:
        states = [dense.begin_snapshot()() for _ in range(5)]
    finally:
        stop.set()
        thread.join()
    done = 0
    for state in states:
        for step in range(done, int(state["a@step"])):
            undisturbed.apply(gradient(undisturbed, step + 1), [0.5])
        done = int(state["a@step"])
        same(state, undisturbed.begin_snapshot()())


def test_nothing_is_copied_for_a_snapshot_that_is_given_up() -> None:
    dense = shard()
    state = dense.begin_snapshot()
    assert list(dense._parts(slice(0, 2 * PIECE))) == [slice(0, PIECE), slice(PIECE, 2 * PIECE)]
    del state
    assert list(dense._parts(slice(0, 2 * PIECE))) == [slice(0, 2 * PIECE)]
