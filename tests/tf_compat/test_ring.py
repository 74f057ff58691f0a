"""Members of a ring of Keras models: what they share, and what becomes of a broken step."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.tf_compat.installed import keras, tf
from tests.tf_compat.members import first_ring, keras_engine, part, run, together
from tests.waiting import HANG_S
from tf_compat.replica import KerasReplica
from tf_compat.step import KerasStep, body
from tf_compat.trained import TrainedModel
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import CheckpointError
from torch_edl.interfaces import Batch
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

Body = Callable[[Batch], float]


def network(seed: int, *, norm: bool = True, dtype: str = "float32") -> TrainedModel:
    keras.utils.set_random_seed(seed)
    norms = [keras.layers.BatchNormalization()] if norm else []
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int64"),
            keras.layers.Embedding(50, 3),
            keras.layers.Flatten(),
            keras.layers.Dense(8, "tanh", dtype=dtype),
            *norms,
            keras.layers.Dense(1),
        ]
    )
    return TrainedModel(model, keras.optimizers.Adam(0.01))


def batch(seed: int, size: int) -> Batch:
    random = np.random.default_rng(seed)
    ids = random.integers(0, 50, (size, 4))
    return Batch(tf.constant(ids), tf.constant(ids[:, :1] % 3, tf.float32), size)


class Office:
    """Members in threads; the rings that they are to form are known before."""

    def __init__(self, stack: ExitStack, rings: Callable[[list[str], int], list[pb.Ring]]) -> None:
        self._stack, self._rings = stack, rings
        self.addresses: list[str] = []
        self.members: list[tuple[RingEngine, TrainedModel, Body]] = []

    def add(self, trained: TrainedModel) -> None:
        worker = len(self.members)

        def rings(address: str) -> Iterator[pb.Ring]:
            self.addresses.append(address)
            return self._later(worker)

        engine = self._stack.enter_context(keras_engine(trained, worker, rings))
        contract: Any = SimpleNamespace(loss=lambda y, p: tf.reduce_mean((y - p) ** 2))
        step = KerasStep(contract, trained, on_nan="skip", compiled=False)
        self.members.append((engine, trained, body(step, engine, trained)))

    def together(self, *calls: Callable[[], Any]) -> list[Any]:
        return together(calls, [engine for engine, _, _ in self.members])

    def _later(self, worker: int) -> Iterator[pb.Ring]:
        yield from self._rings(self.addresses, worker)


@pytest.fixture
def office() -> Iterator[Callable[..., Office]]:
    with ExitStack() as stack:
        yield lambda rings: Office(stack, rings)


def one_ring(size: int) -> Callable[[list[str], int], list[pb.Ring]]:
    return lambda addresses, worker: [first_ring(addresses[0], range(size))]


def values(trained: TrainedModel) -> dict[str, Any]:
    found = {place.name: place.value.copy() for place in trained.places}
    for number, variable in enumerate(trained.optimizer.variables):
        found[f"optimizer.{number}"] = np.asarray(variable).copy()
    return found


def same(one: TrainedModel, other: TrainedModel) -> None:
    theirs = values(other)
    for name, value in values(one).items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.mark.parametrize(("norm", "dtype"), [(True, "float32"), (False, "float64")])
def test_members_have_the_same_bits_and_learn_as_one_process_would(
    office: Callable[..., Office], norm: bool, dtype: str
) -> None:
    """In the third update rank 1 has no records, in the fourth its loss is not finite."""
    one, alone = office(one_ring(2)), office(lambda addresses, worker: [])
    for seed in (1, 2):
        one.add(network(seed, norm=norm, dtype=dtype))
    alone.add(network(1, norm=norm, dtype=dtype))
    batches = [batch(step, 12) for step in range(3)]
    engine, expected, compute = alone.members[0]
    for step, whole in enumerate(batches):
        run(engine, compute, part(step * 12, 12, whole))

    def member(rank: int) -> tuple[float, int, int]:
        engine, trained, compute = one.members[rank]
        engine.join()
        span = slice(0, 8) if rank == 0 else slice(8, 12)
        for step, whole in enumerate(batches):
            if step < 2:
                features, labels = whole.features[span], whole.labels[span]
                mine = Batch(features, labels, span.stop - span.start)
                update = part(step * 12, 12, mine, span.start)
            else:
                update = part(step * 12, 12, None if rank else whole)
            run(engine, compute, update)
        if rank == 0 and not norm:  # which normalizes each member's part by itself
            theirs = values(expected)
            for name, value in values(trained).items():
                np.testing.assert_allclose(value, theirs[name], atol=2e-5, err_msg=name)
        last = batch(9, 6)
        if rank:
            last = Batch(last.features, last.labels * np.nan, 6)
        loss = run(engine, compute, part(36, 12, last, 6 * rank))
        position = engine.replica.position
        return loss, position.left_out, position.records

    (first, *rest), (second, *others) = one.together(lambda: member(0), lambda: member(1))
    same(one.members[0][1], one.members[1][1])
    assert np.isfinite(first)
    assert np.isnan(second)
    assert rest == others == [6, 48]


def test_a_broken_step_changes_nothing_and_is_taken_again(office: Callable[..., Office]) -> None:
    """Rank 1 dies in a sum; its place is taken by a process with another model."""

    def rings(addresses: list[str], worker: int) -> list[pb.Ring]:
        store = addresses[0]
        first = first_ring(store, [0, 1])
        second = pb.Ring(number=2, workers=[0, 2], store=store, heal=True, source=0)
        return {0: [first, second], 1: [first], 2: [second]}[worker]

    one = office(rings)
    for seed in (1, 2, 3):
        one.add(network(seed))
    undone = threading.Event()

    def dies() -> None:
        engine, _, compute = one.members[1]
        engine.join()
        run(engine, compute, part(0, 8, batch(1, 4), 4))
        undone.wait(HANG_S)
        engine.membership.interrupt(1)

    def stays() -> None:
        engine, trained, compute = one.members[0]
        engine.join()
        run(engine, compute, part(0, 8, batch(0, 4)))
        before = values(trained)
        update = part(8, 8, batch(2, 4))
        undone.set()
        compute(engine.begin(update, *update.minibatches))
        assert engine.broken
        undo = engine._reducer.undo_update

        def watched() -> None:
            undo()
            after = values(trained)
            assert all(np.array_equal(value, after[name]) for name, value in before.items())
            assert not trained.gradients

        engine._reducer.undo_update = watched  # type: ignore[method-assign]
        assert not engine.commit(update)
        assert engine.membership.ring == 2
        run(engine, compute, part(8, 8, batch(2, 4)))

    def comes() -> None:
        engine, _, compute = one.members[2]
        engine.join()
        assert vars(engine.replica.position)["step"] == 1
        run(engine, compute, part(8, 8, batch(3, 4), 4))

    one.together(stays, dies, comes)
    same(one.members[0][1], one.members[2][1])
    assert one.members[2][0].replica.position.records == 16


def test_a_member_with_another_model_is_named(office: Callable[..., Office]) -> None:
    one = office(one_ring(2))
    one.add(network(1))
    other = network(1)
    one.add(TrainedModel(other.model, keras.optimizers.SGD(0.01)))

    def refused() -> None:
        with pytest.raises(CheckpointError, match="have another model, or not SGD: start all"):
            one.members[1][0].join()
        one.members[1][0].membership.close()

    def sends() -> None:
        # All of it fits into the buffer of the socket, or the ring breaks and there is no other.
        with contextlib.suppress(StopIteration):
            one.members[0][0].join()

    one.together(sends, refused)


def test_a_checkpoint_of_a_ring_is_resumed_where_it_is_in_the_data(
    office: Callable[..., Office], tmp_path: Path
) -> None:
    one = office(lambda addresses, worker: [])
    one.add(network(1))
    engine, trained, compute = one.members[0]
    for step in range(3):
        run(engine, compute, part(step * 4, 4, batch(step, 4)))
    written = engine.replica.snapshot(Watermarks(0, {0: 12}))(tmp_path / "c")
    manifest = Manifest(job="", strategy="allreduce", steps=3, files=written.files)
    layout.seal(tmp_path / "c", manifest)
    other = network(2)
    replica = KerasReplica(other, 7)
    replica.restore(tmp_path / "c", values_only=False)
    same(trained, other)
    assert replica.position == engine.replica.position
    assert (replica.position.step, replica.position.records) == (3, 12)
