"""``--repair``: a server goes on without the records of its journal that are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.ps_server.conftest import described
from tests.unit.ps_server.durability.journals import on_disk
from torch_edl.config import TrainConfig
from torch_edl.errors import JournalDamagedError, UsageError
from torch_edl.ps_server import snapshots
from torch_edl.ps_server.durability import segments
from torch_edl.ps_server.durability.identity import JournalIdentity
from torch_edl.ps_server.durability.log import Damage
from torch_edl.ps_server.durability.records import Kind
from torch_edl.ps_server.recovery import recover
from torch_edl.ps_server.shard import ModelShard
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb

MINE = JournalIdentity(job="job", shard=0, shards=1, model=1)
ASYNC = TrainConfig()
SYNC = TrainConfig(mode="sync", grads_to_wait=2, staleness=50)


class Life:
    """A shard that counts the pushes that it gets, in one server after the other."""

    def __init__(self, root: Path, rules: TrainConfig = ASYNC) -> None:
        self.root, self.rules = root, rules
        self.servers = 0
        self.open()

    def open(self, *, repair: bool = False) -> None:
        self.servers += 1
        self.journal = on_disk(self.root, MINE, self.servers, fsync="never", repair=repair)
        self.shard = ModelShard(self.rules, None, lambda: pytest.fail("half-way"), log=self.journal)
        recover(self.shard, self.journal)

    def set_up(self) -> None:
        info = pb.EmbeddingTableInfo(name="t", dim=1, initializer=pb.Initializer(kind="zeros"))
        self.shard.initialize(described({"w": np.zeros(1, np.float32)}))
        self.shard.add_tables(pb.PushEmbeddingTableInfosRequest(infos=[info]))

    def push(self, task: int, number: int) -> pb.PushGradientsResponse:
        """The update of that number of a task counts in the weight and in the row of the task."""
        one = codec.to_proto(-np.ones((1, 1), np.float32))
        ids = np.array([task], "<i8").tobytes()
        request = pb.PushGradientsRequest(
            range=pb.RecordRange(task_id=task, first=8 * number, last=8 * number + 8),
            dense=codec.to_proto(-np.ones(1, np.float32)),
            tables=[pb.TableGradient(name="t", ids=ids, values=one)],
            version=self.shard.version,
        )
        return self.shard.push(request)

    def counts(self) -> tuple[int, list[int]]:
        assert self.shard.dense is not None
        rows = self.shard.tables["t"].core.pull(np.arange(3), read_only=True)
        return int(self.shard.dense.flat[0]), rows.reshape(-1).astype(int).tolist()

    def damage(self, *sequences: int) -> None:
        """Changes a byte in each of these records."""
        used, _ = segments.chain(self.journal.place.folder)
        for segment in used:
            for record, end in list(segments.read_segment(segment, MINE, Damage())):
                if record.sequence in sequences:
                    with open(segment.path, "r+b") as file:
                        file.seek(end - 1)
                        file.write(bytes([record.payload[-1] ^ 1]))

    def snapshot(self) -> None:
        snapshots.write(self.shard, self.journal)


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """Two tasks of three updates each: records 3 to 8."""
    begun = Life(tmp_path / "journal")
    begun.set_up()
    for number in range(3):
        for task in range(2):
            begun.push(task, number)
    return begun


def test_what_can_be_read_is_kept_and_nothing_counts_twice(life: Life) -> None:
    life.damage(4, 7)  # update 0 of task 1, and update 2 of task 0
    with pytest.raises(JournalDamagedError, match=r"record 4, .* 2 records cannot be read, 3 beh"):
        life.open()
    life.open(repair=True)
    assert life.shard.lost == 2
    assert "record 4, at byte" in life.journal.place.damage.text
    assert life.counts() == (4, [2, 2, 0])
    # A worker that was not hurt goes on where it is; another one asks for the marks.
    assert life.push(1, 2).duplicate
    assert life.shard.watermarks().offset(0) == 16
    assert life.push(0, 3).accepted
    assert life.push(1, 3).accepted
    assert life.push(0, 2).duplicate
    assert life.counts() == (6, [3, 3, 0])
    with pytest.raises(UsageError, match="is applied in part"):
        life.shard.push(pb.PushGradientsRequest(range=pb.RecordRange(task_id=0, first=28, last=36)))


def test_an_update_that_is_sent_again_is_not_lost(life: Life) -> None:
    life.damage(7)
    life.open(repair=True)
    assert life.counts() == (5, [2, 3, 0])
    answer = life.push(0, 2)
    assert (answer.accepted, answer.duplicate) == (True, False)
    assert life.counts() == (6, [3, 3, 0])


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("sequence", [5, 8])
def test_later_servers_know_what_is_lost(life: Life, sequence: int, compacted: bool) -> None:
    """No trace of a damaged end is left, and the loss is reported once."""
    life.damage(sequence)
    life.open(repair=True)
    assert life.journal.place.damage.text
    if compacted:
        life.snapshot()
    for task in range(2):
        life.push(task, 3)
    counts = life.counts()
    assert sum(counts[1]) == 7
    for _ in range(2):
        life.open(repair=True)
        assert (life.shard.lost, life.journal.place.damage.text) == (1, "")
        assert life.counts() == counts
    damaged = life.journal.last
    life.push(2, 0)
    life.damage(damaged)
    life.open(repair=True)
    assert life.shard.lost == 2
    assert f"record {damaged}, at byte" in life.journal.place.damage.text


@pytest.mark.parametrize("sequence", [1, 2])
def test_nothing_goes_on_without_the_description_of_the_model(life: Life, sequence: int) -> None:
    life.damage(sequence)
    with pytest.raises(JournalDamagedError, match="the first records describe the model"):
        life.open(repair=True)


def test_a_checkpoint_does_not_wait_for_what_is_lost(life: Life) -> None:
    life.damage(7)
    nothing, all_ = Watermarks(), Watermarks(0, {0: 24, 1: 24})
    assert life.shard.has_received(all_, nothing)
    life.open(repair=True)
    assert not life.shard.has_received(all_, nothing)  # it may be on its way
    assert life.shard.has_received(all_, Watermarks(0, {0: 24}))
    assert not life.shard.has_received(Watermarks(0, {0: 32}), Watermarks(0, {0: 24}))


def test_a_quorum_has_the_pushes_that_are_left(tmp_path: Path) -> None:
    life = Life(tmp_path / "journal", SYNC)
    life.set_up()
    for number in range(3):
        for task in range(2):
            life.push(task, number)
    assert life.counts()[0] == 3
    life.damage(5)
    life.open(repair=True)
    assert life.shard.lost == 1
    assert life.counts()[0] == 2
    assert life.shard.has_received(Watermarks(0, {0: 24, 1: 24}), Watermarks())
    life.shard.flush()
    assert life.counts()[0] == 3  # a mean of one
    assert Kind.FLUSH in [record.kind for record in life.journal.records()]
