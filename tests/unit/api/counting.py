"""What the tests of scripts train: a model that counts its records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.unit.engine.ring.rings import Member, Office, Running, office
from tests.waiting import wait_for
from torch_edl.api.job import Job


class Count(nn.Module):
    """A weight for each record: it goes up by one for each time that the record counts, in
    updates of ``size`` records."""

    def __init__(self, records: int, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(records))
        self.size = size

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return -self.w[batch].sum() * self.size / len(batch)


def numbers(records: int) -> TensorDataset:
    return TensorDataset(torch.arange(records))


def counted(records: int, size: int, job: Job, **parts: Any) -> tuple[Any, Any]:
    model = Count(records, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    job.prepare(model, optimizer, **parts)
    return model, optimizer


def train(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    model(batch).backward()
    assert model.w.grad.norm() >= 0, "a script may look at its gradients in every batch"
    optimizer.step()
    assert model.w.grad is not None


def counting(
    member: Member, options: dict[str, Any], at: int = -1, folder: str = "", every: int = 0
) -> None:
    """Count 40 records, and tell the end. From step ``at`` on it tells its steps, and waits for the
    test before each of its batches.

    Args:
        folder: folder of its checkpoints, one each ``every`` updates; empty: none.
    """
    job = member.job(folder, every=every)
    model, optimizer = counted(40, 8, job)
    waits = at >= 0
    for (batch,) in job.loader(numbers(40), **options):
        if waits and job.step >= at:
            member.tell(("step", job.step))
            waits = member.hear() != "on"
        train(model, optimizer, batch)
        job.log(one=1.0)
    member.tell(("done", job.step, model.w.tolist(), len(member.seats)))
    job.close()


def told(world: int, program: Callable[..., None], *args: Any) -> list[Any]:
    """What each member of a ring tells first."""
    with office(world) as one:
        return [each.hear() for each in [one.start(program, *args) for _ in range(world)]]


def waiting(one: Office, program: Callable[..., None], *args: Any, said: Any) -> list[Running]:
    """The members of the first ring, each of which has said so, and waits."""
    members = [one.start(program, *args) for _ in range(one.first)]
    for each in members:
        assert each.hear() == said
    return members


def joining(one: Office, program: Callable[..., None], *args: Any) -> Running:
    """One more member, of which the others have heard."""
    joiner = one.start(program, *args)
    wait_for(lambda: bool(one.members[0].flags.stale.value))
    return joiner


def go_on(members: list[Running]) -> None:
    for each in members:
        each.tell("on")


def finish(members: list[Running]) -> list[tuple[Any, ...]]:
    """Lets them continue; what they say at the end."""
    ends = []
    for each in members:
        while True:
            said = each.hear()
            if said[0] == "done":
                ends.append(said)
                break
            each.tell("on")
    return ends


OPTIONS = {"batch_size": 3, "global_batch_size": 8, "shuffle": True, "epochs": 2}
