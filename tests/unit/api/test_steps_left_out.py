"""Scripts that leave a backward or a step out: found, or made good, never different replicas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.unit.api.counting import Count, counted, numbers, told
from tests.unit.engine.ring.rings import Member
from torch_edl.errors import UsageError


def skipping(member: Member, skipped: dict[int, list[int]]) -> None:
    """All that a body may do to the model, but not in each step of each rank."""
    job = member.job(check_every=1)
    model = Count(40, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    job.prepare(model, optimizer, scheduler, scaler)
    for (batch,) in job.loader(numbers(40), batch_size=4, global_batch_size=8):
        if job.rank in skipped.get(job.step, ()):
            continue
        optimizer.zero_grad()
        scaler.scale(model(batch)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        job.log(one=1.0)
    member.tell(
        (model.w.tolist(), scheduler.last_epoch, scaler.get_scale(), job.step, len(member.seats))
    )
    job.close()


def test_a_batch_left_out_by_one_leaves_all_equal() -> None:
    """The remedy: ``RingEngine._synchronize``. Step 3 is left out by both."""
    ends = told(2, skipping, {1: [0], 2: [1], 3: [0, 1]})
    assert ends[0] == ends[1]
    weights, steps, scale, updates, rings = ends[0]
    assert (steps, scale, updates, rings) == (4, 4096.0, 5, 1)
    # Rates 1, 1/2, 1/4, and 1/8 at the last one; each record by its own and by the momentum.
    none = [0.0] * 4
    assert weights[:8] == pytest.approx([1 + 0.5 * 0.5 + 0.25 * 0.25 + 0.125 * 0.125] * 8)
    assert weights[8:12] == none, "of rank 0, in step 1"
    assert weights[12:16] == pytest.approx([0.5 + 0.25 * 0.5 + 0.125 * 0.25] * 4)
    assert weights[16:20] == pytest.approx([0.25 + 0.5 * 0.125] * 4)
    assert weights[20:32] == none * 3
    assert weights[32:] == pytest.approx([0.125] * 8)


def by_hand(job: Any, **options: Any) -> None:
    model, optimizer = counted(40, 8, job)
    for number, (batch,) in enumerate(job.loader(numbers(40), batch_size=4, **options)):
        model(batch).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def member_by_hand(member: Member) -> None:
    try:
        by_hand(member.job())
    except UsageError as error:
        member.tell(str(error))


@pytest.mark.parametrize("world", [1, 2])
def test_gathering_by_hand_is_refused_where_a_ring_may_change(world: int) -> None:
    assert all("accumulate=N" in said for said in told(world, member_by_hand))


@pytest.mark.parametrize("options", [{}, {"global_batch_size": 8}])
def test_gathering_by_hand_is_refused_in_a_plain_process_too(
    jobs: Any, options: dict[str, int]
) -> None:
    """Each batch would be a step: of the job, of its checkpoints, of ``global_batch_size``."""
    with pytest.raises(UsageError, match="accumulate=N"):
        by_hand(jobs(), **options)


def zeroing(member: Member, keep: bool) -> None:
    job = member.job()
    model, optimizer = counted(40, 8, job)
    for (batch,) in job.loader(numbers(40), batch_size=4, global_batch_size=8):
        optimizer.zero_grad(set_to_none=not keep)
        model(batch).backward()
        if job.step % 2:
            continue  # as for a norm that is not finite: the same in all
        optimizer.step()
    member.tell(model.w.tolist())
    job.close()


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("keep", [False, True])
def test_a_step_left_out_by_all_is_no_gathering(keep: bool, world: int) -> None:
    for weights in told(world, zeroing, keep):
        assert weights == [1.0] * 8 + [0.0] * 8 + [1.0] * 8 + [0.0] * 8 + [1.0] * 8


@pytest.mark.parametrize("keep", [False, True])
def test_a_plain_process_may_leave_steps_out(jobs: Any, keep: bool) -> None:
    job = jobs()
    model, optimizer = counted(40, 4, job)
    for number, (batch,) in enumerate(job.loader(numbers(40), batch_size=4)):
        optimizer.zero_grad(set_to_none=not keep)
        model(batch).backward()
        if number % 2:
            optimizer.step()
    assert sum(model.w.tolist()) == 20.0


def test_unfreezing_is_refused_where_minibatches_are_gathered(jobs: Any) -> None:
    """Gathering knows what required gradients when it was prepared."""
    job = jobs()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    model[0].requires_grad_(True)
    data = TensorDataset(torch.randn(8, 2))

    def loop() -> None:
        for (x,) in job.loader(data, batch_size=2, accumulate=2):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()

    with pytest.raises(UsageError, match="unfreeze or add it before prepare"):
        loop()


def graphing(member: Member) -> None:
    job = member.job()
    model, optimizer = counted(8, 4, job)
    for (batch,) in job.loader(numbers(8), batch_size=2, global_batch_size=4):
        optimizer.zero_grad()
        model(batch).backward(create_graph=True)
        optimizer.step()
    member.tell(model.w.tolist())
    job.close()


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_a_backward_may_make_a_graph() -> None:
    assert told(2, graphing) == [[1.0] * 8] * 2
