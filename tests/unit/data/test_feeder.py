"""Tasks to updates: the same records in the same updates, whoever asks and from wherever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from master.state.work.tasks import TaskQueue
from tests.waiting import HANG_S
from torch_edl.config import DataConfig, JobConfig, TrainConfig
from torch_edl.data import task_reader
from torch_edl.data.feeder import Feeder, FeedError
from torch_edl.data.sources import IndexedSource, open_source
from torch_edl.data.task_reader import TaskReader, TaskRecords
from torch_edl.data.task_space import Shard, Task, TaskSpace
from torch_edl.data.tasks import TaskPrefetcher
from torch_edl.errors import DataError
from torch_edl.interfaces import Update
from torch_edl.master_client.leases import HeldLease
from torch_edl.pytorch.datasets import TorchDatasets
from torch_edl.wire import master_pb2 as pb

RECORDS = [i.to_bytes(4, "little") for i in range(1000)]


def config(batch_size: int = 4, local_steps: int = 1, **data: Any) -> JobConfig:
    return JobConfig(
        name="t",
        model_file="m.py",
        data=DataConfig(batch_size=batch_size, **data),
        train=TrainConfig(local_steps=local_steps),
    )


def numbers(records: list[bytes]) -> torch.Tensor:
    return torch.tensor([int.from_bytes(r, "little") for r in records])


def tensors(records: list[bytes], mode: str, metadata: Any) -> Any:
    values = numbers(records)
    return values if mode == "prediction" else (values, values.float())


class Items(Dataset[Any]):
    def __init__(self, records: list[bytes]) -> None:
        self.values = numbers(records)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index], self.values[index].float()


class Stream(IterableDataset[Any]):
    def __init__(self, records: list[bytes]) -> None:
        self.values = numbers(records)

    def __iter__(self) -> Iterator[Any]:
        for value in self.values:
            yield value, value.float()


FEEDS: dict[str, Callable[..., Any]] = {
    "tuple": tensors,
    "dict": lambda r, m, _: {"x": numbers(r), "labels": numbers(r).float()},
    "dataset": lambda r, m, _: Items(r),
    "iterable": lambda r, m, _: Stream(r),
}


def lease(start: int, end: int, kind: int = pb.TASK_TRAIN, task_id: int = 5) -> HeldLease:
    return HeldLease(
        lease_id=1, task_id=task_id, shard="s", start=start, end=end, kind=kind,
        shard_records=len(RECORDS),
    )  # fmt: skip


def feeder(job: JobConfig, feed: Callable[..., Any]) -> Feeder:
    return Feeder(job, feed, TorchDatasets(job.data), {"s": IndexedSource(RECORDS, name="s")})


def values(update: Update) -> list[int]:
    found = []
    for batch in (minibatch.batch for minibatch in update.minibatches):
        features = batch.features["x"] if isinstance(batch.features, dict) else batch.features
        assert batch.size == len(features) == len(batch.labels)
        found += features.tolist()
    return found


@pytest.mark.parametrize("kind", FEEDS)
@pytest.mark.parametrize("local_steps", [1, 3])
def test_every_record_once_in_windows_of_one_size(kind: str, local_steps: int) -> None:
    updates = list(
        feeder(config(4, local_steps, records_per_task=50), FEEDS[kind]).prepare(lease(100, 150))(0)
    )
    ends = [*range(0, 44, 4), 44, 47, 50]  # 13 minibatches, two of them with 3 records
    assert [(u.first, u.last) for u in updates] == list(
        pairwise([*ends[:-1:local_steps], ends[-1]])
    )
    sizes = [m.batch.size for u in updates for m in u.minibatches]
    # The length of an IterableDataset is not known before it has ended.
    assert sizes == ([4] * 12 + [2] if kind == "iterable" else [4] * 11 + [3, 3])
    assert sorted(v for u in updates for v in values(u)) == list(range(100, 150))
    assert [u.ends_task for u in updates] == [False] * (len(updates) - 1) + [True]


@pytest.mark.parametrize("kind", FEEDS)
def test_no_minibatch_is_much_shorter_than_others(kind: str) -> None:
    """The 16 last of 1,808 records moved a model with BatchNorm as far as 256 did."""
    updates = list(feeder(config(32), FEEDS[kind]).prepare(lease(0, 226))(0))
    even = [29] * 7 + [23] if kind == "iterable" else [29, 29] + [28] * 6
    assert [m.batch.size for u in updates for m in u.minibatches] == even


@pytest.mark.parametrize("kind", ["tuple", "dataset"])
def test_samples_that_feed_leaves_out_do_not_shift_the_others(kind: str) -> None:
    def few(records: list[bytes], *args: Any) -> Any:
        return FEEDS[kind](records[:17], *args)

    whole = list(feeder(config(4), few).prepare(lease(0, 22))(0))
    assert [(u.first, u.last) for u in whole] == [(0, 4), (4, 8), (8, 12), (12, 16), (16, 22)]
    assert [m.batch.size for u in whole for m in u.minibatches] == [4, 4, 3, 3, 3]
    rest = list(feeder(config(4), few).prepare(lease(0, 22))(12))
    assert list(map(values, rest)) == list(map(values, whole[3:]))


@pytest.mark.parametrize("kind", FEEDS)
def test_updates_may_grow_within_a_task(kind: str) -> None:
    sizes = iter([1, 1, 3, 3, 3, 3, 3])
    grown = feeder(config(4, 3, records_per_task=50), FEEDS[kind])
    grown.minibatches = lambda: next(sizes)
    updates = list(grown.prepare(lease(100, 150))(0))
    assert [(u.first, u.last) for u in updates] == [
        (0, 4),
        (4, 8),
        (8, 20),
        (20, 32),
        (32, 44),
        (44, 50),  # 3 and 3 records
    ]
    assert sorted(v for u in updates for v in values(u)) == list(range(100, 150))


@pytest.mark.parametrize("kind", FEEDS)
def test_a_task_goes_on_where_another_worker_left_it(kind: str) -> None:
    job = config(4, 2)
    whole = list(feeder(job, FEEDS[kind]).prepare(lease(0, 100))(0))
    rest = list(feeder(job, FEEDS[kind]).prepare(lease(0, 100))(whole[3].last))
    assert [(u.first, values(u)) for u in rest] == [(u.first, values(u)) for u in whole[4:]]


def test_a_task_cut_short_begins_as_the_whole_one() -> None:
    """A job that went on from --max-steps would else repeat records and leave others out."""
    made = feeder(config(4, records_per_task=20), tensors)
    whole = list(made.prepare(lease(980, 990))(0))
    cut = list(made.prepare(lease(980, 987))(0))  # two of its minibatches of 4, 3 and 3
    assert list(map(values, cut)) == list(map(values, whole))[:2]


def test_order_is_shuffled_by_seed_and_task() -> None:
    def order(task_id: int, **data: Any) -> list[int]:
        updates = feeder(config(64, **data), tensors).prepare(lease(0, 64, task_id=task_id))(0)
        return values(next(updates))

    assert order(1) == order(1) != order(2)
    assert order(1, shuffle=False) == list(range(64))


def test_evaluation_and_prediction_keep_the_order() -> None:
    for kind in (pb.TASK_EVALUATE, pb.TASK_PREDICT):
        (update,) = feeder(config(64), tensors).prepare(lease(0, 64, kind))(0)
        (minibatch,) = update.minibatches
        assert minibatch.batch.features.tolist() == list(range(64))
        assert (minibatch.batch.labels is None) == (kind == pb.TASK_PREDICT)


def table(records: Any, mode: str, metadata: Any) -> Any:
    values = torch.from_numpy(records["n"].to_numpy().copy())
    return values, values.float()


@pytest.mark.parametrize("again", ["as large", "larger"])
def test_a_file_that_changed_since_it_was_counted_is_refused(tmp_path: Path, again: str) -> None:
    path = tmp_path / "n.csv"
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(10, 40)))
    shard = Shard.of(open_source(str(path)))
    work = TaskQueue(TaskSpace([shard], 20), lease_ids=count(1), timeout_s=9)
    first = work.message(work.take_next(0, 0.0))
    assert Feeder(config(), table, TorchDatasets(config().data)).prepare(first)
    path.write_text("n\n" + "".join(f"{n}\n" for n in range(50, 80 + 9 * (again == "larger"))))
    now = "39 records, 119 bytes" if again == "larger" else "30 records, 92 bytes"
    with pytest.raises(DataError, match=rf"n.csv: .* it was 30 records, 92 .* now it is {now} of"):
        Feeder(config(), table, TorchDatasets(config().data)).prepare(first)
    # A ring, or a script, reads by tasks.
    records = TaskRecords(TaskSpace([shard], 20), TaskReader(open_source, 20, None))
    with pytest.raises(DataError, match=r"n.csv: is not what the job counted"):
        records.__getitems__([(0, 0, 5)])


def test_few_sources_are_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The footers of ten thousand files are gigabytes."""
    monkeypatch.setattr(task_reader, "KEPT_SOURCES", 2)
    opened: list[str] = []

    def open_shard(name: str) -> IndexedSource:
        opened.append(name)
        return IndexedSource([name.encode()], name=name)

    reader = TaskReader(open_shard, 1, None)
    for name in "abacaba":
        task = Task(0, 0, name, 0, 1)
        assert reader.read(task, Shard.of(reader.source(name))) == [name.encode()]
    assert opened == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        (lambda r, *_: r["label"], "Table with the columns 'n', 'odd'[)]"),
        (lambda r, *_: [row["n"] for row in r], "TypeError: .*Table with the columns"),
        (lambda r, *_: r.iterrows(), "AttributeError: .*Table with the columns"),
        (lambda r, *_: 1 / 0, "ZeroDivisionError: division by zero$"),
        (lambda r, *_: torch.ones(3), "feed returned Tensor without labels; expected a tuple"),
        (
            lambda r, *_: {"x": torch.ones(3)},
            "dict of .'x'. without labels, which belong under 'labels'",
        ),
        (lambda r, *_: None, "feed returned NoneType; expected a tuple"),
        (lambda r, *_: (torch.ones(3), torch.ones(1)), "feed returned 3 samples with 1 labels"),
    ],
)
def test_what_feed_does_wrong(tmp_path: Path, feed: Callable[..., Any], message: str) -> None:
    (tmp_path / "n.csv").write_text("n,odd\n1,2\n")
    made = Feeder(
        config(), feed, TorchDatasets(config().data), {"s": open_source(str(tmp_path / "n.csv"))}
    )
    records = made.reader.source("s").read(0, 1)
    with pytest.raises(FeedError, match=message):
        made.batch(records, "s")


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        (lambda r, *_: r["x"], r"feed raised TypeError: .* \(records is a list of bytes\)"),
        (lambda r, *_: numbers(r), "feed returned Tensor"),
        (lambda r, *_: (numbers(r), torch.zeros(1)), "samples with 1 labels"),
        (lambda r, *_: ((numbers(r), torch.zeros(3)), numbers(r)), "must have the same"),
        (lambda r, *_: Items(r + r), "not add any"),
    ],
)
def test_what_feed_does_wrong_in_a_task(feed: Callable[..., Any], message: str) -> None:
    with pytest.raises(FeedError, match=message):
        list(feeder(config(4), feed).prepare(lease(0, 16))(0))


def test_an_interrupt_is_an_error_of_feed_in_a_thread_and_ctrl_c_in_the_main_one() -> None:
    def feed(*_: Any) -> Any:
        raise KeyboardInterrupt

    made = feeder(config(4), feed)
    with pytest.raises(KeyboardInterrupt):
        made.prepare(lease(0, 16))
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(made.prepare, lease(0, 16)).exception(HANG_S)
    assert isinstance(error, FeedError)
    assert "feed raised KeyboardInterrupt" in str(error)


def test_arrays_become_tensors_in_a_ring_as_in_a_task() -> None:
    def feed(records: Any, mode: str, metadata: Any) -> Any:
        return {"a": np.arange(len(records)), "labels": np.zeros(len(records))}

    made = feeder(config(), feed)
    [ring, *_] = [made.batch(RECORDS[:8], "s")]
    [task, *_] = [m.batch for u in made.prepare(lease(0, 8))(0) for m in u.minibatches]
    for batch in (ring, task):
        assert isinstance(batch.features["a"], torch.Tensor)
        assert isinstance(batch.labels, torch.Tensor)
    assert ring.size == 8


class Torn(Items):
    """Items of which some cannot be read."""

    def __init__(self, records: list[bytes], torn: set[int]) -> None:
        super().__init__(records)
        self.torn = torn

    def __getitem__(self, index: int) -> Any:
        if int(self.values[index]) in self.torn:
            raise OSError("no image")
        return super().__getitem__(index)


def torn(*numbers: int) -> Callable[..., Any]:
    return lambda records, *_: Torn(records, set(numbers))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_record_that_cannot_be_read_is_named(workers: int, shuffle: bool) -> None:
    job = config(4, records_per_task=50, shuffle=shuffle, loader_workers=workers)
    updates = feeder(job, torn(137)).prepare(lease(100, 150))(0)
    with pytest.raises(
        FeedError,
        match=r"^the dataset of feed raised OSError: no image for record 137 of s; --skip-damaged",
    ) as caught:
        list(updates)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_stream_of_feed_has_each_sample_once_with_several_processes() -> None:
    job = config(4, loader_workers=2, shuffle=False)
    updates = feeder(job, FEEDS["iterable"]).prepare(lease(0, 16))(0)
    assert [value for update in updates for value in values(update)] == list(range(16))


@pytest.mark.parametrize("workers", [0, 1])
def test_records_that_cannot_be_read_are_left_out(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    # The whole of the second minibatch, and one of the fourth.
    job = config(4, 2, shuffle=False, skip_damaged=True, loader_workers=workers)
    made = feeder(job, torn(4, 5, 6, 7, 13))
    whole = list(made.prepare(lease(0, 20))(0))
    assert [(u.first, u.last, u.damaged, [m.first for m in u.minibatches]) for u in whole] == [
        (0, 8, 4, [0]), (8, 16, 1, [8, 12]), (16, 20, 0, [16]),
    ]  # fmt: skip
    assert [values(u) for u in whole] == [
        [0, 1, 2, 3],
        [8, 9, 10, 11, 12, 14, 15],
        [*range(16, 20)],
    ]
    assert "left out: record 13 of s: the dataset of feed raised OSError: no image" in caplog.text
    rest = list(made.prepare(lease(0, 20))(8))
    assert [(u.first, u.damaged, values(u)) for u in rest] == [
        (u.first, u.damaged, values(u)) for u in whole[1:]
    ]
    # Predictions stay in line with the records.
    with pytest.raises(FeedError, match=r"for record 4 of s$"):
        list(made.prepare(lease(0, 20, pb.TASK_PREDICT))(0))


def test_a_ring_names_records_and_leaves_them_out() -> None:
    space = TaskSpace([Shard("s", len(RECORDS))], 20, seed=3, shuffle=True)
    records = TaskRecords(space, TaskReader(lambda _: IndexedSource(RECORDS, name="s"), 20, 3))
    pieces = [(7, 12, 20), (8, 0, 8)]
    given = records.__getitems__(pieces)
    bad = numbers(given).tolist()[10]
    with pytest.raises(FeedError, match=r"OSError: no image$") as caught:
        feeder(config(), torn(bad)).batch(given, "s")
    assert caught.value.index == 10
    assert records.name(pieces, 10) == f"record {bad} of s"
    batch = feeder(config(skip_damaged=True), torn(bad)).batch(given, "s")
    assert (batch.size, [d.index for d in batch.damaged]) == (15, [10])
    nothing = feeder(config(skip_damaged=True), torn(*range(1000))).batch(given, "s")
    assert (nothing.size, len(nothing.damaged)) == (0, 16)


def test_a_task_without_records_is_one_update_and_no_call_of_feed() -> None:
    """Offsets of a stream may all be marks of transactions."""

    class Marks(IndexedSource):
        def read(self, start: int, end: int) -> Any:
            return []

    def feed(records: Any, mode: str, metadata: Any) -> Any:
        raise AssertionError

    marks = Feeder(
        config(4, shuffle=False), feed, TorchDatasets(DataConfig()), {"s": Marks(RECORDS, "s")}
    )
    (update,) = marks.prepare(lease(0, 8))(0)
    assert (update.first, update.last, update.count, update.ends_task) == (0, 8, 0, True)


def test_a_feed_may_leave_records_out() -> None:
    def odd(records: list[bytes], mode: str, metadata: Any) -> Any:
        kept = numbers(records)
        kept = kept[kept % 2 == 1]
        return kept, kept.float()

    updates = list(feeder(config(4), odd).prepare(lease(0, 16))(0))
    assert sum(len(values(u)) for u in updates) == 8
    assert updates[-1].last == 16
    assert updates[-1].ends_task


@pytest.mark.parametrize("late", [False, True])
def test_a_prefetcher_that_is_stopped_prepares_nothing_any_more(late: bool) -> None:
    """An interpreter that ends while a thread computes in torch aborts the process. The lease may
    come after the stop."""
    told: list[str] = []
    asked, granted, started, never = (threading.Event() for _ in range(4))

    class Leases:
        incarnation = epochs = 0

        def request(self, want: int, ahead: int) -> pb.LeaseResponse:
            asked.set()
            assert granted.wait(HANG_S)
            leases = [pb.LeaseMessage(kind=pb.TASK_TRAIN)]
            return pb.LeaseResponse(next=pb.LeaseResponse.LEASED, leases=leases)

    def prepare(lease: HeldLease) -> None:
        started.set()
        never.wait(0.3)
        told.append("prepared")

    tasks = TaskPrefetcher(Leases(), prepare)  # type: ignore[arg-type]
    tasks.start()
    assert asked.wait(HANG_S)
    if not late:
        granted.set()
        assert started.wait(HANG_S)
    tasks.stop()
    told.append("stopped")
    granted.set()
    tasks._preparer.join(HANG_S)
    assert told == (["stopped"] if late else ["prepared", "stopped"])


class Removing(IndexedSource):
    """A stream whose messages are removed, one by one, from the middle."""

    def read(self, start: int, end: int) -> Any:
        records = list(super().read(start, end))
        self.removed = getattr(self, "removed", -1) + 1
        return records[: 2 - self.removed] + records[2:]


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("kind", FEEDS)
def test_a_task_that_lost_records_is_not_continued(kind: str, tolerant: bool) -> None:
    """Offsets count records: the rest would be other records than those that were not trained."""
    job = config(4, skip_damaged=tolerant, shuffle=False)
    source = Removing(RECORDS, name="s")
    made = Feeder(job, FEEDS[kind], TorchDatasets(job.data), {"s": source})
    first = next(made.prepare(lease(0, 20))(0))
    assert first.first_records is not None
    assert first.first_records.records == 20
    again = replace(lease(0, 20), first=first.first_records)
    if not tolerant:
        with pytest.raises(DataError, match=r"0 to 19 had 20 messages .* have 19 now"):
            made.prepare(again)
        return
    (rest,) = made.prepare(again)(first.last)
    assert (rest.first, rest.last, rest.count) == (4, 20, 0)
