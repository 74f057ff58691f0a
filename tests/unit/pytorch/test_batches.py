"""A DataLoader that is told which records come next; the real one, with and without processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from torch_edl.errors import UsageError
from torch_edl.pytorch.batches import Batches, StreamBatches, open_batches


class Squares(Dataset[tuple[int, int]]):
    """Record i is (i, i * i); says how often it was asked."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.asked.append(index)
        return index, index * index


class Stream(IterableDataset[int]):
    """The first numbers."""

    def __init__(self, records: int) -> None:
        self.records = records

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.records))


def opened(dataset: Any, options: dict[str, Any] | None = None, **data: Any) -> Any:
    given = {"batch_size": 4, "epochs": 1, "shuffle": False, "seed": 3, **data}
    return open_batches(dataset, given, 0, options or {})


def run(batches: Any, rank: int, world: int, start: int = 0, updates: int = 1 << 30) -> Any:
    """All minibatches of one member, as lists of first columns, and where it stopped."""
    taken = []
    while updates:
        data = batches.known_end(start, world)
        start = data.next_start(start, world)
        if start >= data.total:
            break
        data = batches.known_end(start, world)
        part = data.part(start, rank, world)
        for span in part.spans:
            batch = batches.take(span, start, rank, world)
            taken.append((batch[0] if isinstance(batch, list) else batch).tolist())
        start += part.records
        updates -= 1
    return taken, start


def flat(taken: list[list[int]]) -> list[int]:
    return [number for batch in taken for number in batch]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_record_comes_once_per_epoch_also_when_the_ring_changes(workers: int) -> None:
    batches = opened(Squares(30), {"num_workers": workers}, shuffle=True, epochs=2)
    one, start = run(batches, 0, 1, updates=3)
    assert start == 12
    # Another member comes; this one has rank 1 from now on.
    other = opened(Squares(30), shuffle=True, epochs=2)
    two, end = run(batches, 1, 2, start)
    theirs, _ = run(other, 0, 2, start)
    assert end == 60
    assert sorted(flat(one) + flat(two) + flat(theirs)) == sorted(2 * list(range(30)))
    batches.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_that_is_taken_again_has_the_same_records(workers: int) -> None:
    batches = opened(Squares(16), {"num_workers": workers}, shuffle=True)
    first = batches.take((0, 4), 0, 0, 1)
    again = batches.take((0, 4), 0, 0, 1)
    then = batches.take((4, 8), 4, 0, 1)
    assert first[0].tolist() == again[0].tolist()
    assert not set(first[0].tolist()) & set(then[0].tolist())
    batches.close()


def test_one_loader_runs_as_long_as_the_ring_stays_the_same() -> None:
    dataset = Squares(32)
    run(opened(dataset), 0, 1)
    assert dataset.asked == list(range(32))


def test_the_dataloader_gets_its_options() -> None:
    batches = opened(Squares(8), {"collate_fn": lambda records: [r[1] for r in records]})
    assert batches.take((0, 4), 0, 0, 1) == [0, 1, 4, 9]
    assert batches.sample((1, 3)) == [1, 4]


def test_a_dataset_that_reads_many_at_once_is_asked_so() -> None:
    calls: list[list[int]] = []

    class Many(TensorDataset):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            calls.append(indices)
            return [self[i] for i in indices]

    batches = opened(Many(torch.arange(8)))
    assert batches.sample((2, 4))[0].tolist() == [2, 3]
    assert calls == [[2, 3]]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("records", [1, 8, 13])
def test_a_stream_ends_with_its_last_record(records: int, world: int) -> None:
    taken = []
    for rank in range(world):
        part, end = run(opened(Stream(records)), rank, world)
        assert end == records
        taken += flat(part)
    assert sorted(taken) == list(range(records))


def test_a_stream_without_records_is_said_to_be_empty() -> None:
    with pytest.raises(UsageError, match="empty"):
        run(opened(Stream(0)), 0, 1)


def test_a_stream_drops_what_does_not_fill_its_last_update() -> None:
    taken, _ = run(opened(Stream(11), drop_last=True), 0, 1)
    assert flat(taken) == list(range(8))


def test_the_epochs_of_a_stream_follow_each_other() -> None:
    taken, end = run(opened(Stream(6), epochs=2), 0, 1)
    assert end == 12
    assert taken == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5]]


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3), (2, 2)])
def test_a_stream_goes_on_where_it_was_when_the_ring_changes(before: int, after: int) -> None:
    """Read for a ring of ``before``, the step fails, and it is taken again by ``after``."""
    streams = [opened(Stream(40)) for _ in range(max(before, after))]
    taken = []
    for rank in range(before):
        part, start = run(streams[rank], rank, before, updates=1)
        taken += flat(part)
        # It has the records of the next update already.
        data = streams[rank].known_end(start, before)
        streams[rank].take(data.part(start, rank, before).spans[0], start, rank, before)
    for rank in range(after):
        part, end = run(streams[rank], rank, after, start)
        assert end == 40
        taken += flat(part)
    assert sorted(taken) == list(range(40))


def test_a_stream_is_read_up_to_where_a_checkpoint_is() -> None:
    taken, _ = run(opened(Stream(20)), 0, 1, start=10)
    assert flat(taken) == list(range(10, 20))


@pytest.mark.parametrize(
    ("dataset", "options", "data", "words"),
    [
        (TensorDataset(torch.zeros(0)), {}, {}, "empty"),
        (iter([1]), {}, {}, "expected __len__"),
        ([1], {"sampler": [0]}, {}, "sampler: the job deals"),
        ([1], {"batch_sampler": [[0]]}, {}, "batch_sampler: the job deals"),
        (Stream(3), {"num_workers": 2}, {}, "num_workers"),
        (Stream(3), {}, {"shuffle": True}, "shuffle=True"),
        ([1], {}, {"batch_size": 0}, "batch_size 0"),
    ],
)
def test_what_cannot_work_is_said(
    dataset: Any, options: dict[str, Any], data: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        opened(dataset, options, **data)


def test_what_is_opened_is_of_the_kind_of_the_dataset() -> None:
    assert isinstance(opened([1, 2]), Batches)
    assert isinstance(opened(Stream(2)), StreamBatches)


TEXTS = ["the cat sat", "on the mat", "and looked"]


@pytest.mark.parametrize("texts", [TEXTS, tuple(TEXTS), ["long " * 5000], []])
def test_texts_in_a_list_are_said_to_be_taken_for_files(texts: Any) -> None:
    with pytest.raises(UsageError, match=r"a list of str names data files; .*\[\{'text'") as error:
        opened(texts)
    assert len(str(error.value)) < 500


def test_of_one_path_only_the_path_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file") as error:
        opened(tmp_path / "none.csv")
    assert "a list of str" not in str(error.value)


def test_the_remedy_that_is_named_works() -> None:
    batches = opened([{"text": text} for text in TEXTS], batch_size=2)
    assert batches.take((0, 2), 0, 0, 1) == {"text": TEXTS[:2]}
    batches.close()
