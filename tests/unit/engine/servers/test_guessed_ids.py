"""The rows of a script's next minibatch are pulled ahead, on a guess.

Whatever the script does, each lookup counts once (a row is the number of times that its id was
looked up), and no row is older than the staleness allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_edl
from tests.unit.engine.servers.trained import IDS, TOKEN, update
from torch_edl.config import JobConfig, TrainConfig
from torch_edl.engine.servers.engine import ServersEngine
from torch_edl.interfaces import Batch, Minibatch, Update
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import HeldLease
from torch_edl.nn import rows
from torch_edl.nn.rows import LookupOnDevice
from torch_edl.ps_client.client import PsClient
from torch_edl.ps_client.partition import PartitionedIds, TableIds
from torch_edl.pytorch.servers.served import ServedTorchModel
from torch_edl.wire import master_pb2 as pb

GPU = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
)
BATCHES, SIZE = 16, 8
LEARNED = 6
"""The batch from which on pulls are ahead, at the latest."""


class Counting(nn.Module):
    """Two tables of counts. It remembers what was looked up with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch_edl.nn.Embedding(IDS, 1, initializer="zeros")
        self.deep = torch_edl.nn.Embedding(None, 1, initializer="zeros")
        self.updates = nn.Parameter(torch.zeros(1))
        self.counts: Counter[tuple[str, int]] = Counter()

    def row(self, table: str, ids: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.counts.update((table, id) for id in ids.flatten().tolist())
        found: torch.Tensor = getattr(self, table)(ids)
        return found

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Minus the number of records that each row is to count."""
        rows = self.row("wide", ids[:, 0]).sum() + self.row("deep", ids[:, 1:]).sum()
        return -rows - self.updates.sum()


class Script:
    """An engine, and a loop of the user's own over updates."""

    def __init__(
        self, servers: list[pb.Server], monkeypatch: Any, device: str = "cpu", **train: Any
    ) -> None:
        self.model = Counting().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        config = JobConfig(name="t", model_file="m.py", train=TrainConfig(**train))
        self.served = ServedTorchModel(self.model, self.optimizer, None)
        self.engine = ServersEngine(self.served, config=config, token=TOKEN, status=WorkerStatus())
        self.engine.connect(pb.Cluster(incarnation=1, servers=servers))
        self.number = 0  # of the batch in hand
        self.pulls: list[tuple[int, int, bool]] = []
        """(batch in hand, tables, with dense parameters) of each pull."""
        pull = PsClient.pull

        def noted(client: PsClient, tables: Any, *, dense: bool = True, **how: Any) -> Any:
            self.pulls.append((self.number, len(tables), dense))
            return pull(client, tables, dense=dense, **how)

        monkeypatch.setattr(PsClient, "pull", noted)

    def updates(self, given: list[Any]) -> list[Update]:
        lease = HeldLease(lease_id=1, task_id=0, start=0, end=len(given) * SIZE)
        made = []
        for n, value in enumerate(given):
            one = update(lease, [Batch(None, None, SIZE)], first=n * SIZE, last=(n + 1) * SIZE)
            one.minibatches = [Minibatch(0, n * SIZE, SIZE, value)]
            made.append(one)
        return made

    def loop(self, given: list[Any]) -> Iterator[Any]:
        """Do what :func:`torch_edl.training.loop.loop` does."""
        updates, ahead = self.updates(given), 0
        for self.number, one in enumerate(updates):
            while ahead < len(updates) and ahead <= self.number + self.engine.depth:
                self.engine.prefetch(updates[ahead])
                ahead += 1
            (minibatch,) = one.minibatches
            yield self.engine.begin(one, minibatch)
            assert self.engine.commit(one)
        self.engine.acknowledged(wait=True)

    def step(self, ids: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(ids).backward()
        self.optimizer.step()

    def check(self, steps: int) -> None:
        """Each lookup is in its row once, and no row is of an id that nobody looked up."""
        self.engine.acknowledged(wait=True)
        for table in ("wide", "deep"):
            counts = {id: n for (name, id), n in (+self.model.counts).items() if name == table}
            ids = PartitionedIds.of(
                torch.tensor(sorted(counts)).numpy(), self.engine._servers.servers
            )
            wanted = [TableIds(table, 1, ids)]
            (found,) = self.engine._servers.pull(wanted, dense=False, read_only=True).wait().rows
            assert dict(zip(ids.unique.tolist(), found.flatten().tolist(), strict=True)) == counts
        kept, _ = self.engine._servers.rows("deep", 1)
        assert set(kept.tolist()) == {id for name, id in +self.model.counts if name == "deep"}
        with self.engine.evaluating():
            assert self.model.updates.item() == steps
        self.engine.close()


@pytest.fixture(params=[0, 1])
def script(
    request: Any, start_servers: Callable[..., list[pb.Server]], monkeypatch: pytest.MonkeyPatch
) -> Script:
    return Script(start_servers(2), monkeypatch, staleness=request.param)


def batches() -> list[Any]:
    torch.manual_seed(0)
    return [
        (torch.randint(0, IDS - 5, (SIZE, 3)), {"x": torch.rand(SIZE, 2)}) for _ in range(BATCHES)
    ]


def test_one_pull_for_all_tables(script: Script) -> None:
    for ids, _ in script.loop(batches()):
        script.step(ids)
    late = [pull for pull in script.pulls if pull[0] > LEARNED]
    assert {pull[1:] for pull in late} == {(2, True)}
    assert len(late) <= BATCHES - 1 - LEARNED
    script.check(BATCHES)


@pytest.mark.parametrize("where", ["as on a device", GPU])
def test_a_model_on_a_device(
    start_servers: Callable[..., list[pb.Server]], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Ids that the script moves to the device are recognised as those of its minibatch."""
    if where == "as on a device":
        monkeypatch.setattr(rows, "_Lookup", LookupOnDevice)
    device = "cuda" if where == "cuda" else "cpu"
    script = Script(start_servers(2), monkeypatch, device, staleness=1)
    for ids, _ in script.loop(batches()):
        script.step(ids.to(device))
    late = [pull for pull in script.pulls if pull[0] > LEARNED]
    assert {pull[1:] for pull in late} == {(2, True)}
    script.check(BATCHES)


def test_the_next_pull_travels_with_backward(
    start_servers: Callable[..., list[pb.Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(start_servers(2), monkeypatch, staleness=1)
    for ids, _ in script.loop(batches()):
        script.optimizer.zero_grad()
        loss = script.model(ids)
        if script.engine._pushed is not None:
            script.engine._pushed[1].wait()
        loss.backward()
        if script.number < BATCHES - 1:
            (following,) = script.engine._ahead
            assert following.pull is not None
            assert script.number < LEARNED or len(following.plan.tables) == 2
        script.optimizer.step()
    script.check(BATCHES)


def add_one(script: Script, ids: torch.Tensor) -> None:
    script.step(ids.add_(1))


def add_one_unseen(script: Script, ids: torch.Tensor) -> None:
    ids.numpy()[:] += 1  # no version of a tensor tells of this
    script.step(ids)


def add_one_late(script: Script, ids: torch.Tensor) -> None:
    if script.number > LEARNED:
        ids.numpy()[:] += 1
    script.step(ids)


def another_order(script: Script, ids: torch.Tensor) -> None:
    if script.number <= LEARNED:
        script.step(ids)
        return
    model = script.model
    script.optimizer.zero_grad()
    loss = -model.row("deep", ids[:, 1:]).sum() - model.row("wide", ids[:, 0]).sum()
    (loss - model.updates.sum()).backward()
    script.optimizer.step()


def branch(script: Script, ids: torch.Tensor) -> None:
    model = script.model
    script.optimizer.zero_grad()
    loss = -model.row("wide", ids[:, 0]).sum() - model.updates.sum()
    if script.number % 9 != 8:
        loss = loss - model.row("deep", ids[:, 1:]).sum()
    loss.backward()
    script.optimizer.step()


def twice(script: Script, ids: torch.Tensor) -> None:
    script.optimizer.zero_grad()
    half = script.model(ids) + script.model.updates.sum()  # the update counts once
    (half + script.model(ids)).backward()
    script.optimizer.step()


def twice_at_last(script: Script, ids: torch.Tensor) -> None:
    (twice if script.number > LEARNED else Script.step)(script, ids)


def copy(script: Script, ids: torch.Tensor) -> None:
    script.step(ids.clone())


def validated(script: Script, ids: torch.Tensor) -> None:
    """With other ids, before and after the step."""
    with torch.no_grad():
        script.model.eval()(ids % 7)
    script.model.train()
    script.step(ids)
    with torch.no_grad():
        script.model(ids)


@pytest.mark.parametrize("script", [1], indirect=True)
@pytest.mark.parametrize(
    ("body", "is_guessed"),
    [
        (Script.step, True),
        (validated, True),
        (twice, True),
        (twice_at_last, False),
        (add_one, False),
        (add_one_unseen, False),
        (add_one_late, False),
        (another_order, False),
        (branch, False),
        (copy, False),
    ],
)
def test_each_lookup_counts_once(
    script: Script, body: Callable[[Script, torch.Tensor], None], is_guessed: bool
) -> None:
    for ids, _ in script.loop(batches()):
        body(script, ids)
    assert script.served.rows._plain.is_over != is_guessed
    script.check(BATCHES)


@pytest.mark.parametrize("script", [1], indirect=True)
def test_a_batch_that_is_skipped_makes_no_rows(script: Script) -> None:
    given = batches()
    given[-2][0][:] += 1000
    given[-2][0][:, 0] = IDS - 1
    for ids, _ in script.loop(given):
        if script.number != BATCHES - 2:
            script.step(ids)
    assert not script.served.rows._plain.is_over
    script.check(BATCHES - 1)


@pytest.mark.parametrize("script", [1], indirect=True)
def test_an_id_out_of_range_is_an_error_of_the_lookup(script: Script) -> None:
    """The guess says nothing of it: the script may make ids of it that are in range."""
    given = batches()
    given[10][0][0, 0] = IDS
    for ids, _ in script.loop(given):
        if script.number == 10:
            with pytest.raises(torch_edl.errors.UsageError, match=rf"id {IDS} is outside"):
                script.model.row("wide", ids[:, 0])
            script.model.counts.subtract(("wide", id) for id in ids[:, 0].tolist())
            script.step(ids % IDS)
        else:
            script.step(ids)
    script.check(BATCHES)


def test_rows_are_as_new_as_the_staleness_says(script: Script) -> None:
    """All batches look the same ids up, so each row is to be the number of batches before."""
    ids = torch.arange(SIZE * 3).view(SIZE, 3)
    seen = []
    for batch in script.loop([ids.clone() for _ in range(BATCHES)]):
        script.optimizer.zero_grad()
        model = script.model
        rows = torch.cat(
            [model.row("wide", batch[:, 0]), model.row("deep", batch[:, 1:]).flatten(0, 1)]
        )
        assert len(set(rows.flatten().tolist())) == 1
        seen.append((script.number - rows[0].item(), script.number - model.updates.item()))
        (-rows.sum() - model.updates.sum()).backward()
        script.optimizer.step()
    for row_age, dense_age in seen:
        assert 0 <= row_age <= script.engine.depth
        assert 0 <= dense_age <= script.engine.depth
    script.check(BATCHES)
