"""A task that is trained again has its records in the same order, whatever ``feed`` draws from."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from tests.unit.data.test_feeder import config, feeder, lease, tensors, values
from torch_edl.data.feeder import Feeder
from torch_edl.data.randomness import Generators, is_same_order, order_of
from torch_edl.pytorch.datasets import TorchDatasets
from torch_edl.wire import master_pb2 as pb

RECORDS = 60


def shuffled(order: Callable[[int], Any]) -> Callable[..., Any]:
    """A ``feed`` with the records in an order."""

    def feed(records: list[bytes], mode: str, metadata: Any) -> Any:
        numbers = torch.tensor([int.from_bytes(record, "little") for record in records])[
            order(len(records))
        ]
        return numbers, numbers.float()

    return feed


class Stream(IterableDataset[Any]):
    """Shuffles when it is read, and not in ``feed``."""

    def __init__(self, records: list[bytes]) -> None:
        self._records = records

    def __iter__(self) -> Iterator[Any]:
        for at in torch.randperm(len(self._records)).tolist():
            number = int.from_bytes(self._records[at], "little")
            yield number, float(number + 0 * random.random())


FEEDS = {
    "random": shuffled(lambda n: random.sample(range(n), n)),
    "numpy": shuffled(lambda n: torch.from_numpy(np.random.permutation(n))),
    "torch": shuffled(torch.randperm),
    "stream": lambda records, mode, metadata: Stream(records),
}


@pytest.mark.parametrize("kind", FEEDS)
def test_a_shuffle_is_the_same_in_each_attempt(kind: str) -> None:
    job = config(4, records_per_task=RECORDS)
    first, again = (feeder(job, FEEDS[kind]) for _ in range(2))
    torch.manual_seed(1)
    whole = [values(update) for update in first.prepare(lease(0, RECORDS))(0)]
    torch.manual_seed(2)
    np.random.random()
    random.random()
    again.prepare(lease(0, RECORDS, task_id=3))
    rest = [values(update) for update in again.prepare(lease(0, RECORDS))(20)]
    assert rest == whole[5:]
    other = [values(update) for update in again.prepare(lease(0, RECORDS, task_id=4))(0)]
    assert other[0] != whole[0]


def test_a_worker_that_evaluates_first_trains_in_the_same_order() -> None:
    """An evaluation, in which ``feed`` does not shuffle, says nothing of training."""

    def feed(records: list[bytes], mode: str, metadata: Any) -> Any:
        is_training = mode == "training"
        return shuffled(torch.randperm if is_training else torch.arange)(records, mode, metadata)

    job = config(4, records_per_task=RECORDS)
    first, again = (feeder(job, feed) for _ in range(2))
    again.prepare(lease(0, RECORDS, kind=pb.TASK_EVALUATE))
    orders = []
    for made in (first, again):
        torch.manual_seed(len(orders))
        orders.append([values(update) for update in made.prepare(lease(0, RECORDS))(0)])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("kind", FEEDS)
def test_the_first_records_are_known_wherever_an_attempt_begins(kind: str) -> None:
    made = feeder(config(4, records_per_task=RECORDS), FEEDS[kind])
    attempts = [
        list(made.prepare(lease(0, RECORDS, task_id=task))(offset))
        for task, offset in ((5, 0), (5, 20), (6, 20))
    ]
    assert all(update.first_records is None for _, *rest in attempts for update in rest)
    first, begun, other = (updates[0].first_records for updates in attempts)
    assert first == begun
    assert first.framework == other.framework == "torch"
    assert not is_same_order(first.order, other.order)


def test_a_dataset_draws_other_numbers_for_each_item_and_the_same_in_each_attempt() -> None:
    def drawn() -> list[float]:
        task = Generators(TorchDatasets.generator).of_task(0, 0, 1)
        return list(task.iterate(random.random() for _ in range(5)))

    assert len(set(drawn())) == 5
    assert drawn() == drawn()


def test_what_training_draws_does_not_depend_on_feed() -> None:
    made = feeder(config(4, records_per_task=RECORDS), FEEDS["torch"])
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(3), random.random()
    torch.manual_seed(3)
    random.seed(3)
    made.prepare(lease(0, RECORDS))
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]


def test_the_generator_of_torch_is_left_alone_if_feed_does_not_use_it() -> None:
    """Else a dropout that runs beside ``feed`` would draw other numbers in each run."""
    generators = Generators(TorchDatasets.generator)
    for task in range(2):
        generators.of_task(0, 0, task).feed(lambda: None, trains=True)
    state = torch.get_rng_state()
    seen = generators.of_task(0, 0, 2).feed(torch.get_rng_state, trains=True)
    assert torch.equal(seen, state)


DRAWS: dict[str, Callable[[], float]] = {"random": random.random, "numpy": np.random.random}


@pytest.mark.parametrize("name", DRAWS)
def test_feed_and_a_model_that_draw_at_the_same_time_do_not_disturb_each_other(name: str) -> None:
    """The model waits until ``feed`` is over, or ``feed`` until the model is."""
    draw = DRAWS[name]

    def feed(records: list[bytes], mode: str, metadata: Any) -> Any:
        order = [int.from_bytes(record, "little") for record in records]
        for _ in range(2000):  # long enough for the other thread to draw in between
            order[int(draw() * len(order))], order[0] = order[0], order[int(draw() * len(order))]
        return np.array(order), np.array(order)

    def fed(made: Feeder) -> list[list[int]]:
        tasks = [lease(0, RECORDS, task_id=task) for task in range(12)]
        return [[n for u in made.prepare(task)(0) for n in values(u)] for task in tasks]

    job = config(4, records_per_task=RECORDS)
    expected = fed(feeder(job, feed))
    random.seed(3)
    np.random.seed(3)
    alone = [draw() for _ in range(50_000)]
    random.seed(3)
    np.random.seed(3)
    beside, stop, drawn = feeder(job, feed), threading.Event(), list[float]()

    def train() -> None:
        while not stop.is_set():
            with beside.generators.apart():
                drawn.extend(draw() for _ in range(100))

    training = threading.Thread(target=train)
    training.start()
    try:
        found = fed(beside)
    finally:
        stop.set()
        training.join()
    assert found == expected
    assert drawn[: len(alone)] == alone[: len(drawn)]


@pytest.mark.parametrize("name", DRAWS)
def test_a_feed_that_draws_late_is_called_once_more_with_seeded_generators(name: str) -> None:
    """``feed`` runs beside the model until it draws, so its first numbers may be any."""

    def feed(records: list[bytes], mode: str, metadata: Any) -> Any:
        if records[0] != (0).to_bytes(4, "little"):
            key = {record: DRAWS[name]() for record in records}
            records.sort(key=key.__getitem__)
        return tensors(records, mode, metadata)

    job = config(4, records_per_task=RECORDS, shuffle=False)
    late, again = feeder(job, feed), feeder(job, feed)
    late.prepare(lease(0, RECORDS))
    second = lease(RECORDS, 2 * RECORDS, task_id=6)
    order, same = (
        [number for update in made.prepare(second)(0) for number in values(update)]
        for made in (late, again)
    )
    assert order == same
    assert order != sorted(order)


LABELS = {
    "rare": lambda n: (np.arange(n) % 50 == 7).astype(np.float32),
    "classes": lambda n: np.arange(n) % 10,
    "one-hot": lambda n: np.eye(2)[np.arange(n) % 2],
    "constant": lambda n: np.ones(n),
}


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("count", [8, 64, 5000])
def test_another_order_is_told_and_rounding_is_not(kind: str, count: int) -> None:
    labels = LABELS[kind](count)
    ids = {"item": np.arange(count) * 2**40, "price": np.linspace(0, 1, count)}
    known = order_of(ids, labels)
    again = {"price": ids["price"] + 1e-3, "item": torch.from_numpy(ids["item"])}
    assert is_same_order(known, order_of(again, labels * (1 + 1e-7)))
    order = np.random.default_rng(count).permutation(count)
    moved = {name: column[order] for name, column in ids.items()}
    assert not is_same_order(known, order_of(moved, labels[order]))


def test_pictures_may_be_augmented() -> None:
    pictures = np.random.default_rng(0).integers(0, 255, (8, 4, 4, 3), dtype=np.uint8)
    labels = torch.arange(8)
    assert order_of(pictures, labels) == order_of(pictures[:, ::-1], labels)
    assert order_of(pictures, None) == 0.0
    assert order_of(None, torch.rand(8, requires_grad=True)) == 0.0
