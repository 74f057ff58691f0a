"""Rings that break within a step, at the end of a pass, or while a process joins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.unit.api.counting import Count, go_on, joining, numbers, told, waiting
from tests.unit.engine.ring.rings import Member, office
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.pytorch import replica as replicas


class Bend(nn.Module):
    """Counts, and has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.count = Count(40, 8)
        self.norm = nn.BatchNorm1d(1, affine=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.norm(torch.stack([batch.float(), batch.float() + 1]).view(-1, 1))
        return self.count(batch)


def breaking(member: Member) -> None:
    """Rank 0 compares all its state before and after the body of a broken step."""
    job = member.job()
    model = Bend()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    job.prepare(model, optimizer, scheduler, scaler)
    engine = job._part.engine
    assert engine is not None
    seen = []
    before = None
    asked: list[replicas.State] = []
    member.before_ask = lambda: asked.append(engine.replica.copy())
    for (batch,) in job.loader(numbers(40), batch_size=8, global_batch_size=8):
        if job.step == 2 and before is None:
            before = engine.replica.copy()
            member.tell(job.rank)
            member.hear()
        seen.append((job.step, job.world_size, batch.tolist()))
        optimizer.zero_grad()
        scaler.scale(model(batch)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        job.log(records=float(len(batch)), one=1.0)
    assert before is not None
    after = asked[1]
    assert after.header == before.header
    for name, value in before.tensors.items():
        assert torch.equal(value, after.tensors[name]), name
    # The batch of the step that broke came again, for the world that is left.
    again = [batch for step, _, batch in seen if step == 2]
    assert again == [[16, 17, 18, 19], list(range(16, 24))]
    assert job.meter.newest["one"] == 1.0
    kept = sum(records for _, records in job.meter._kept["one"])
    assert kept == 2 * 4 + 3 * 8
    member.tell("ok")
    job.close()


def test_a_broken_step_changes_nothing_and_its_batch_comes_again() -> None:
    with office(2) as one:
        members = [one.start(breaking) for _ in range(2)]
        ranks = [each.hear() for each in members]
        members[ranks.index(1)].kill()
        members[ranks.index(0)].tell("on")
        assert members[ranks.index(0)].hear() == "ok"


def lose_the_sum(engine: RingEngine) -> None:
    """Break the reduction as if the last bytes of the sum had not arrived."""
    engine._reducer.fail("cut")
    engine._reducer.clear_gradients()


def one_behind(member: Member) -> None:
    """At step 2 the last rank loses a collective that the others finish."""
    job = member.job(check_every=1)
    torch.manual_seed(member.worker)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 4])
    job.prepare(model, optimizer, scheduler)
    engine = job._part.engine
    assert engine is not None
    data = TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(0)))
    cut = False
    for (x,) in job.loader(data, batch_size=4, global_batch_size=8):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        if job.step == 2 and job.rank == 1 and not cut:
            cut = True
            lose_the_sum(engine)
        optimizer.step()
        scheduler.step()
        job.log(x=1.0)
    records = sum(n for _, n in job.meter._kept["x"])
    rings = [(ring.source, ring.heal) for ring in member.seats]
    member.tell((job.step, engine.replica.digest(), scheduler.last_epoch, records, rings))
    job.close()


def test_members_that_differ_by_a_step_take_the_state_of_the_most_advanced() -> None:
    """The remedy: ``Membership.join`` tells how far the model is, then ``synchronize``."""
    ends = told(2, one_behind)
    assert ends[0][:3] == ends[1][:3]
    assert ends[0][0] == ends[0][2] == 6
    # Each counted its part of all six steps, also the member that lost one.
    assert ends[0][3] == ends[1][3] == 24
    assert ends[0][4] == ends[1][4] == [(0, True), (0, True)]


# ---- what scripts do ----


def passes(member: Member, wait_in: int = -1, lose: str = "") -> None:
    """Loops, a schedule by epoch, evaluations. In the first ring, members wait in one of the
    passes; or the last rank loses the last collective of a pass, which the other finishes."""
    job = member.job()
    model = Count(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 + n)
    job.prepare(model, optimizer, scheduler)
    engine = job._part.engine
    results = []
    bodies = 0
    for epoch in range(3):
        waits = epoch == wait_in and member.worker < 2
        for (batch,) in job.loader(numbers(8), batch_size=4, global_batch_size=4):
            bodies += 1
            is_first_ring = len(member.seats) == 1
            if waits and is_first_ring:
                waits = False
                member.tell("there")
                member.hear()
            optimizer.zero_grad()
            model(batch).backward()
            if lose == "step" and job.step == 3 and job.rank == 1 and is_first_ring:
                lose_the_sum(engine)
            optimizer.step()
        scheduler.step()
        if lose == "collect" and epoch == 1 and job.rank == 1:
            group = engine.membership.group
            gather = group.gather

            def lost(part: bytes, gather: Any = gather) -> Any:
                gather(part)
                engine.membership.interrupt(engine.membership.ring)
                return gather(part)

            group.gather = lost
        results.append(job.collect(lambda rank, world: b"x", len))
    member.tell((model.w.tolist(), scheduler.last_epoch, results, job.step, bodies))
    job.close()


@pytest.mark.parametrize("wait_in", [0, 1, 2])
def test_a_joiner_runs_through_what_is_over_and_gets_its_results(wait_in: int) -> None:
    with office(2) as one:
        members = waiting(one, passes, wait_in, said="there")
        joiner = joining(one, passes, wait_in)
        go_on(members)
        ends = [each.hear() for each in [*members, joiner]]
        # Learning rates 1, 2, 3: none was applied twice.
        results = [2 if epoch < wait_in else 3 for epoch in range(3)]
        assert [end[:3] for end in ends] == [([6.0] * 8, 3, results)] * 3
        # One batch to warm up, then the second half of the pass and those after it.
        assert ends[2][4] == 1 + 1 + 2 * (2 - wait_in)


@pytest.mark.parametrize("lose", ["step", "collect"])
def test_a_member_that_lost_the_end_of_a_pass_does_not_do_it_twice(lose: str) -> None:
    """The remedy: ``catching_up`` after a state of a later pass came, and ``progress``."""
    with office(2) as one:
        ends = [each.hear() for each in [one.start(passes, -1, lose) for _ in range(2)]]
        assert [end[:4] for end in ends] == [([6.0] * 8, 3, [2, 2, 2], 6)] * 2
        assert len(one.seats) == 2
