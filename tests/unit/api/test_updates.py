"""What a loop can see of its updates: when one is made, and its gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.unit.api.counting import told
from tests.unit.engine.ring.rings import Member
from torch_edl.api.job import Job

Seen = list[tuple[bool, int, int, bool]]


class Sum(nn.Module):
    """The gradient of ``w`` is the mean of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.w * batch).mean()


def loop(
    job: Job, *, guarded: bool = False, keep: bool = False, stop: int = -1, **options: Any
) -> tuple[Seen, Any]:
    """For each batch: is it the last of its update; steps before and after; is there a gradient.

    Args:
        guarded: the optimizer steps in the last batch of an update only.
        keep: gradients are set to zero, and not to None.
    """
    model = Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    job.prepare(model, optimizer)
    seen: Seen = []
    for (batch,) in job.loader(TensorDataset(torch.arange(20.0)), batch_size=4, **options):
        before = job.step
        model(batch).backward()
        there = bool(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9) > 0)
        if not guarded or job.sync_gradients:
            optimizer.step()
            after = job.step
            optimizer.zero_grad(set_to_none=not keep)
        seen.append((job.sync_gradients, before, after if job.sync_gradients else job.step, there))
        if job.step == stop:
            break
    return seen, model.w


@pytest.mark.parametrize("how", [{}, {"keep": True}, {"guarded": True}])
@pytest.mark.parametrize("options", [{"accumulate": 2}, {"global_batch_size": 8}])
def test_a_loop_sees_when_an_update_is_made(
    jobs: Any, options: dict[str, Any], how: dict[str, bool]
) -> None:
    job = jobs()
    seen, w = loop(job, **how, **options)
    assert seen == [
        (False, 0, 0, True),
        (True, 0, 1, True),
        (False, 1, 1, True),
        (True, 1, 2, True),
        (True, 2, 3, True),
    ]
    assert job.sync_gradients
    assert job.step == 3
    assert w.item() == -(3.5 + 11.5 + 17.5)


def test_steps_are_right_after_a_break(jobs: Any) -> None:
    job = jobs()
    seen, _ = loop(job, accumulate=2, stop=2)
    assert [after for _, _, after, _ in seen] == [0, 1, 1, 2]
    assert job.step == 2


def test_a_batch_may_have_two_losses_where_batches_are_gathered(jobs: Any) -> None:
    job = jobs()
    model = Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    job.prepare(model, optimizer)
    for (batch,) in job.loader(TensorDataset(torch.arange(8.0)), batch_size=4, accumulate=2):
        if not job.sync_gradients:
            model(batch).backward()
            assert model.w.grad.item() == 1.5
        model(batch).backward()
        optimizer.step()
    assert model.w.item() == pytest.approx(-(1.5 + 1.5 + 5.5) / 2)


def member_loop(member: Member) -> None:
    job = member.job()
    seen, w = loop(job, global_batch_size=10)
    member.tell((seen, w.item()))
    job.close()


def test_members_of_a_ring_see_the_same_updates() -> None:
    for seen, w in told(2, member_loop):
        assert seen == [
            (False, 0, 0, True),
            (True, 0, 1, True),
            (False, 1, 1, True),
            (True, 1, 2, True),
        ]
        assert w == pytest.approx(-(4.5 + 14.5))
