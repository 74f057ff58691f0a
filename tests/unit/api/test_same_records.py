"""Datasets whose records differ between the processes of a job."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from tests.unit.api.counting import counted, finish, go_on, joining, told, train, waiting
from tests.unit.engine.ring.rings import Member, office
from torch_edl.engine.ring.membership import DivergedError
from torch_edl.pytorch.first_records import digests_of_dataset

COUNT = 64
FIX = "remove split_dataset_by_node, split_by_node"


class Stream(IterableDataset[Any]):
    """Records of a function of their number."""

    def __init__(self, record: Callable[[int], Any], first: int = 0, step: int = 1) -> None:
        self.record, self.numbers = record, range(first, COUNT, step)

    def __iter__(self) -> Iterator[Any]:
        return map(self.record, self.numbers)


class Indexed(Dataset[Any]):
    """A dataset that computes the numbers of its records when they are read."""

    def __init__(self, record: Callable[[int], Any], first: int = 0, step: int = 1) -> None:
        self.record, self.first, self.step = record, first, step

    def __len__(self) -> int:
        return COUNT // self.step

    def __getitem__(self, index: int) -> Any:
        return self.record(self.first + index * self.step)


def plain(number: int) -> Any:
    return {"number": number, "text": f"text {number}", "source": "web"}


def augmented(number: int) -> Any:
    """Random numbers of the global generators; no part is the same in two processes."""
    noise = [torch.rand(3), np.random.rand(3), random.random()]
    return {"number": number + int(1000 * random.random()), "noise": noise}


def noisy(number: int) -> Any:
    """Random numbers of a generator that nobody can observe."""
    return {"number": number, "image": np.random.default_rng().random((4, 4))}


def unknown(number: int) -> Any:
    return [torch.zeros(2), object()]


def hugging(rank: int, world: int) -> Any:
    datasets = pytest.importorskip("datasets")
    from datasets.distributed import split_dataset_by_node

    whole = datasets.Dataset.from_dict({"number": list(range(COUNT))})
    return split_dataset_by_node(whole.to_iterable_dataset(num_shards=4), rank, world)


def hugging_map(rank: int, world: int) -> Any:
    datasets = pytest.importorskip("datasets")
    from datasets.distributed import split_dataset_by_node

    whole = datasets.Dataset.from_dict({"number": list(range(COUNT))})
    return split_dataset_by_node(whole, rank, world)


SPLIT: dict[str, Callable[[int, int], Any]] = {
    "stream": lambda rank, world: Stream(plain, rank, world),
    "numbers": lambda rank, world: Stream(int, rank, world),
    "hugging face": hugging,
    "hugging face, indexed": hugging_map,
    "indexed": lambda rank, world: Indexed(plain, rank, world),
    "other lengths": lambda rank, world: Indexed(plain, 0, 1 + rank),
}
WHOLE: dict[str, Callable[[int, int], Any]] = {
    "stream": lambda rank, world: Stream(plain),
    "hugging face": lambda rank, world: hugging(0, 1),
    "augmented stream": lambda rank, world: Stream(augmented),
    "augmented": lambda rank, world: Indexed(augmented),
    "noisy stream": lambda rank, world: Stream(noisy),
    "noisy": lambda rank, world: Indexed(noisy),
    "equal": lambda rank, world: Stream(unknown),
}


def numbers_of(records: list[Any]) -> torch.Tensor:
    """The numbers of the records, as a batch that :func:`train` accepts."""
    found = [each["number"] if isinstance(each, dict) else each for each in records]
    return torch.tensor([n % COUNT if isinstance(n, int) else 0 for n in found])


def passes(member: Member, kinds: dict[str, str]) -> None:
    """A pass over each dataset, with other random numbers in each process."""
    seed = member.worker
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    job = member.job()
    model, optimizer = counted(COUNT, 8, job)
    said = ""
    try:
        for name, kind in kinds.items():
            dataset = (SPLIT if kind == "split" else WHOLE)[name](member.worker, 2)
            for batch in job.loader(dataset, batch_size=4, collate_fn=numbers_of):
                train(model, optimizer, batch)
    except DivergedError as error:
        said = f"{name}: {error}"
    member.tell((job.step, said))
    member.hear()


@pytest.mark.parametrize("kind", SPLIT)
def test_a_dataset_that_is_split_by_rank_is_refused_before_the_first_step(kind: str) -> None:
    for step, said in told(2, passes, {kind: "split"}):
        assert step == 0, said
        assert FIX in said


def test_records_that_are_random_or_equal_are_not_refused() -> None:
    for step, said in told(2, passes, dict.fromkeys(WHOLE, "whole")):
        assert (step, said) == (8 * len(WHOLE), "")


def late(member: Member, splits: bool) -> None:
    job = member.job()
    model, optimizer = counted(COUNT, 8, job)
    dataset = Stream(plain, 1, 2) if splits and member.worker == 2 else Stream(plain)
    waits, said = True, ""
    try:
        for batch in job.loader(dataset, batch_size=4, collate_fn=numbers_of, epochs=2):
            if waits and job.step >= 3:
                member.tell(("step", job.step))
                waits = member.hear() != "on"
            train(model, optimizer, batch)
    except DivergedError as error:
        said = str(error)
    member.tell(("done", job.rank, said))
    member.hear()


@pytest.mark.parametrize("splits", [False, True])
def test_the_records_of_a_process_that_joins_later_are_compared(splits: bool) -> None:
    with office(2) as one:
        members = waiting(one, late, splits, said=("step", 3))
        members.append(joining(one, late, splits))
        go_on(members)
        for kind, _, said in finish(members):
            assert kind == "done"
            assert (FIX in said) == splits, said


def test_a_comparison_draws_no_random_numbers() -> None:
    random.seed(0)
    expected = random.random()
    random.seed(0)
    assert digests_of_dataset(Indexed(augmented)) == {}
    assert digests_of_dataset(Indexed(noisy)).keys() == {"number"}
    assert digests_of_dataset(Indexed(plain)).keys() == {"number", "text"}
    assert random.random() == expected
