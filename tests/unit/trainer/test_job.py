"""The three lines in a script: rings of real processes, one killed, one that joins."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_edl
from tests.unit.engine.ring.rings import Member, office, wait_until
from torch_edl.checkpoint import layout
from torch_edl.engine import replica as replicas
from torch_edl.engine.ring.control_flags import DivergedError
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import UsageError
from torch_edl.trainer.job import Job


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


# ---- a ring ----


def counting(member: Member, records: int, size: int, options: dict[str, Any], at: int) -> None:
    """Tells its steps; at step ``at`` it waits for the test before each of its batches."""
    job = member.job()
    model, optimizer = counted(records, size, job)
    logged = 0
    for (batch,) in job.loader(numbers(records), **options):
        if job.step >= at >= 0 and logged < 2**30:
            member.tell(("step", job.step))
            if member.hear() == "on":
                logged = 2**30
        train(model, optimizer, batch)
        job.log(one=1.0)
    member.tell(("done", job.step, model.w.tolist(), len(member.seats)))
    job.close()


def finish(members: list[Any]) -> list[tuple[Any, ...]]:
    """Lets them go on; what they say at the end."""
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


@pytest.mark.parametrize("world", [2, 4])
def test_each_record_counts_once_per_epoch(world: int) -> None:
    with office(world) as one:
        members = [one.start(counting, 40, 8, OPTIONS, -1) for _ in range(world)]
        for end in finish(members):
            assert end[1:] == (10, [2.0] * 40, 1)


@pytest.mark.parametrize("how", ["kill", "leave", "join", "kill and join"])
def test_each_record_counts_once_when_members_come_and_go(how: str) -> None:
    with office(3) as one:
        members = [one.start(counting, 40, 8, OPTIONS, 3) for _ in range(3)]
        for each in members:
            assert each.hear() == ("step", 3)
        if "kill" in how:
            members.pop().kill()
        if how == "leave":
            members[2].flags.leaving.value = 1
            members.pop().tell("on")
        if "join" in how:
            joiner = one.start(counting, 40, 8, OPTIONS, -1)
            members.append(joiner)
            wait_until(lambda: bool(members[0].flags.stale.value))
        for each in members:
            each.tell("on")
        ends = finish(members)
        for end in ends:
            assert end[1:3] == (10, [2.0] * 40)
        assert ends[0][3] >= 2


def test_a_stopped_member_holds_the_others_up_until_it_is_given_up() -> None:
    with office(3) as one:
        members = [one.start(counting, 40, 8, OPTIONS, 3) for _ in range(3)]
        for each in members:
            assert each.hear() == ("step", 3)
        members[1].signal(signal.SIGSTOP)
        for each in members:
            each.tell("on")
        lost = members.pop(1)
        assert not members[0].pipe.poll(0.5)
        one.drop(lost)
        for end in finish(members):
            assert end[1:] == (10, [2.0] * 40, 2)


# ---- a broken step ----


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
    assert job._meter.newest["one"] == 1.0
    kept = sum(records for _, records in job._meter._kept["one"])
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
    """As if the last bytes of the sum had not come."""
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
    records = sum(n for _, n in job._meter._kept["x"])
    rings = [(assignment.source, assignment.heal) for assignment in member.seats]
    member.tell((job.step, engine.replica.digest(), scheduler.last_epoch, records, rings))
    job.close()


def test_members_that_differ_by_a_step_take_the_state_of_the_most_advanced() -> None:
    """The remedy: ``Membership.join`` tells how far the model is, then ``synchronize``."""
    with office(2) as one:
        ends = [each.hear() for each in [one.start(one_behind) for _ in range(2)]]
        assert ends[0][:3] == ends[1][:3]
        assert ends[0][0] == ends[0][2] == 6
        # Each counted its part of all six, also who had to be told of one.
        assert ends[0][3] == ends[1][3] == 24
        assert ends[0][4] == ends[1][4] == [(0, True), (0, True)]


# ---- what scripts do ----


def passes(member: Member, wait_in: int) -> None:
    """Loops, a schedule by epoch, evaluations; waits in one of the passes."""
    job = member.job()
    model = Count(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 + n)
    job.prepare(model, optimizer, scheduler)
    results = []
    bodies = 0
    for epoch in range(3):
        waited = False
        for (batch,) in job.loader(numbers(8), batch_size=4, global_batch_size=4):
            bodies += 1
            if epoch == wait_in and not waited and len(member.seats) == 1 and member.worker < 2:
                waited = True
                member.tell("there")
                member.hear()
            train(model, optimizer, batch)
        scheduler.step()
        results.append(job.collect(lambda rank, world: b"x", len))
    member.tell((model.w.tolist(), scheduler.last_epoch, results, bodies))
    job.close()


@pytest.mark.parametrize("wait_in", [0, 1, 2])
def test_a_joiner_runs_through_what_is_over_and_gets_its_results(wait_in: int) -> None:
    with office(2) as one:
        members = [one.start(passes, wait_in) for _ in range(2)]
        for each in members:
            assert each.hear() == "there"
        joiner = one.start(passes, wait_in)
        wait_until(lambda: bool(members[0].flags.stale.value))
        for each in members:
            each.tell("on")
        ends = [each.hear() for each in [*members, joiner]]
        for weights, epoch, results, _ in ends:
            # Learning rates 1, 2, 3: none was applied twice.
            assert weights == [6.0] * 8
            assert epoch == 3
            assert results == [2 if e < wait_in else 3 for e in range(3)]
        # One batch to warm up, then the second half of the pass and those after it.
        assert ends[2][3] == 1 + 1 + 2 * (2 - wait_in)


def boundary(member: Member, where: str) -> None:
    """The last rank loses the last collective of a pass that the other finishes."""
    job = member.job()
    model = Count(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 + n)
    job.prepare(model, optimizer, scheduler)
    engine = job._part.engine
    assert engine is not None
    results = []
    for epoch in range(3):
        for (batch,) in job.loader(numbers(8), batch_size=4, global_batch_size=4):
            optimizer.zero_grad()
            model(batch).backward()
            if where == "step" and job.step == 3 and job.rank == 1 and len(member.seats) == 1:
                lose_the_sum(engine)
            optimizer.step()
        scheduler.step()
        if where == "collect" and epoch == 1 and job.rank == 1:
            group = engine._membership.group
            assert group is not None
            gather = group.gather

            def lost(part: bytes, gather: Any = gather) -> Any:
                gather(part)
                engine.interrupt(engine.ring)
                return gather(part)

            group.gather = lost  # type: ignore[method-assign]
        results.append(job.collect(lambda rank, world: b"x", len))
    member.tell((model.w.tolist(), scheduler.last_epoch, results, job.step))
    job.close()


@pytest.mark.parametrize("where", ["step", "collect"])
def test_a_member_that_lost_the_end_of_a_pass_does_not_do_it_twice(where: str) -> None:
    """The remedy: ``catching_up`` after a state of a later pass came, and ``progress``."""
    with office(2) as one:
        ends = [each.hear() for each in [one.start(boundary, where) for _ in range(2)]]
        assert ends == [([6.0] * 8, 3, [2, 2, 2], 6)] * 2
        assert len(one.seats) == 2


def leaving_out(member: Member) -> None:
    """Bodies that go on before backward, in one member or in all; and a loop that ends early."""
    job = member.job(check_every=1)
    model, optimizer = counted(16, 4, job)
    for (batch,) in job.loader(numbers(16), batch_size=2):
        if job.step == 1 and job.rank == 1:
            continue
        if job.step == 2:
            continue
        train(model, optimizer, batch)
    assert model.w.tolist() == [1.0] * 6 + [0.0] * 2 + [0.0] * 4 + [1.0] * 4
    for (batch,) in job.loader(numbers(16), batch_size=2):
        train(model, optimizer, batch)
        job.log(left=1.0)
        if job.step == 6:
            break
    for (batch,) in job.loader(numbers(16), batch_size=2):
        train(model, optimizer, batch)
    member.tell((job.step, model.w.tolist()))
    job.close()


def test_batches_that_are_left_out_and_loops_that_end_early() -> None:
    with office(2) as one:
        ends = [each.hear() for each in [one.start(leaving_out) for _ in range(2)]]
        # Two updates of the second loop, four of the third.
        weights = [3.0] * 6 + [2.0] * 2 + [1.0] * 4 + [2.0] * 4
        assert ends == [(10, weights)] * 2


def differing(member: Member, every: int) -> None:
    job = member.job(check_every=every)
    model, optimizer = counted(40, 4, job)
    said = "not noticed"
    try:
        for (batch,) in job.loader(numbers(40), batch_size=2):
            train(model, optimizer, batch)
            if job.step == 4 and job.rank == 1:
                model.w.data[39] += 1e-6
    except DivergedError as error:
        said = str(error)
    member.tell((job.step, said))
    member.hear()


def test_members_whose_parameters_differ_are_told() -> None:
    with office(2) as one:
        for each in [one.start(differing, 1) for _ in range(2)]:
            step, said = each.hear()
            assert step == 4
            assert said.startswith("step 4: the parameters of the members differ")


def unheard(member: Member) -> None:
    job = member.job()
    model, optimizer = counted(40, 4, job)
    bodies = 0
    for (batch,) in job.loader(numbers(40), batch_size=2):
        bodies += 1
        if bodies == 3:
            member.tell(job.step)
            member.hear()
        train(model, optimizer, batch)
    member.tell((bodies, model.w.tolist(), len(member.seats)))
    job.close()


@pytest.mark.parametrize("world", [1, 2])
def test_a_ring_that_no_master_hears_stops_counting(world: int) -> None:
    with office(world) as one:
        members = [one.start(unheard) for _ in range(world)]
        assert [each.hear() for each in members] == [2] * world
        for each in members:
            each.flags.silent.value = 1
        for each in members:
            each.tell("on")
        wait_until(lambda: len(one.seats) > 2)
        for each in members:
            each.flags.silent.value = 0
        for bodies, weights, rings in (each.hear() for each in members):
            assert rings > 2
            assert bodies > (20 if world == 1 else 10)
            assert weights == [2.0 if world == 1 else 1.0] * 40


def test_one_member_that_hears_the_master_is_enough() -> None:
    with office(2) as one:
        members = [one.start(unheard) for _ in range(2)]
        assert [each.hear() for each in members] == [2, 2]
        members[0].flags.silent.value = 1
        for each in members:
            each.tell("on")
        assert [each.hear() for each in members] == [(10, [1.0] * 40, 1)] * 2


# ---- checkpoints ----


def saving(member: Member, folder: str, stop: int) -> None:
    job = member.job(folder, every=2)
    model, optimizer = counted(40, 8, job)
    for (batch,) in job.loader(numbers(40), **OPTIONS):
        train(model, optimizer, batch)
        if job.step == stop:
            member.tell("there")
            member.hear()
    member.tell((job.step, model.w.tolist()))
    job.close()


@pytest.mark.parametrize("accept", [True, False])
def test_a_checkpoint_goes_on_in_another_world_with_the_rest(tmp_path: Path, accept: bool) -> None:
    with office(3) as one:
        one.accept = accept
        members = [one.start(saving, str(tmp_path), 6) for _ in range(3)]
        for each in members:
            assert each.hear() == "there"
        if not accept:
            assert layout.newest(tmp_path) is None
            return
        # Of step 4, or of step 2 where that was being written still.
        wait_until(lambda: layout.newest(tmp_path) is not None)
    with office(2) as one:
        one.restored_from = str(layout.newest(tmp_path))
        for each in [one.start(saving, str(tmp_path), 10**9) for _ in range(2)]:
            assert each.hear() == (10, [2.0] * 40)
        # The last one, when the script ends.
        wait_until(lambda: (layout.newest(tmp_path) or tmp_path).name == "step-0000000010")


# ---- one process ----


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


DATA = TensorDataset(
    torch.randn(50, 6, generator=torch.Generator().manual_seed(1)),
    torch.arange(50) % 3,
)


def test_one_process_is_bit_by_bit_the_plain_loop(jobs: Any) -> None:
    def loop(model: nn.Module, optimizer: Any, batches: Any) -> list[torch.Tensor]:
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [value.clone() for value in model.state_dict().values()]

    plain = network()
    adam = torch.optim.Adam(plain.parameters())
    for _ in range(3):
        wanted = loop(plain, adam, DataLoader(DATA, batch_size=8))
    job = jobs()
    model = network()
    model, optimizer = job.prepare(model, torch.optim.Adam(model.parameters()))
    loader = job.loader(DATA, batch_size=8, epochs=3)
    assert len(loader) == 21
    got = loop(model, optimizer, loader)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert (job.step, job.rank, job.world_size, job.is_main) == (21, 0, 1, True)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "epochs": 2},
        {"batch_size": 4, "accumulate": 3},
        {"batch_size": 4, "global_batch_size": 10, "epochs": 2},
        {"batch_size": 4, "drop_last": True, "epochs": 3},
        {"batch_size": 20, "drop_last": True},
        {"batch_size": 60, "drop_last": True},
        {"batch_size": 7, "global_batch_size": 25, "drop_last": True},
    ],
)
def test_a_loader_is_as_long_as_it_says(jobs: Any, options: dict[str, Any]) -> None:
    job = jobs()
    counted(50, 1, job)
    loader = job.loader(numbers(50), **options)
    assert len(list(loader)) == len(loader)


def test_accumulated_batches_are_one_update(jobs: Any) -> None:
    job = jobs()
    model, optimizer = counted(16, 8, job)
    steps = []
    for (batch,) in job.loader(numbers(16), batch_size=3, global_batch_size=8):
        steps.append(job.step)
        train(model, optimizer, batch)
    assert steps == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(model.w, torch.ones(16))


def test_a_schedule_counts_updates_and_its_state_can_be_pickled(jobs: Any, tmp_path: Path) -> None:
    job = jobs()
    model = Count(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    plain = set(scheduler.state_dict())
    job.prepare(model, optimizer, scheduler)
    for (batch,) in job.loader(numbers(16), batch_size=3, global_batch_size=8):
        train(model, optimizer, batch)
        scheduler.step()
    assert scheduler.last_epoch == 2
    scheduler.step()
    assert scheduler.last_epoch == 3
    assert set(scheduler.state_dict()) == plain
    torch.save(scheduler.state_dict(), tmp_path / "scheduler.pt")


def test_metrics_are_weighted_and_also_of_a_batch_before_a_break(jobs: Any) -> None:
    job = jobs()
    model, optimizer = counted(10, 4, job)
    for (batch,) in job.loader(numbers(10), batch_size=4):
        train(model, optimizer, batch)
        job.log(first=torch.tensor(float(batch[0])), size=len(batch))
        if job.step == 3:
            break
    assert job.metrics() == {"first": (0 * 4 + 4 * 4 + 8 * 2) / 10, "size": (16 + 16 + 4) / 10}
    assert job.metrics() == {}


def test_a_job_goes_on_from_its_checkpoint(jobs: Any, tmp_path: Path) -> None:
    for stop in (3, 10**9):
        job = jobs(checkpoint_dir=tmp_path, checkpoint_every=1, resume=stop > 3)
        model, optimizer = counted(40, 8, job)
        for (batch,) in job.loader(numbers(40), batch_size=8, shuffle=True):
            train(model, optimizer, batch)
            if job.step == stop:
                job._saver.after_step(job._part.engine)
                break
        if stop == 3:
            # As if it had been killed there.
            job.ending.finished = False
        job.close()
    assert model.w.tolist() == [1.0] * 40
    assert job.step == 5


def test_a_checkpoint_of_another_model_is_refused(jobs: Any, tmp_path: Path) -> None:
    job = jobs(checkpoint_dir=tmp_path)
    model, optimizer = counted(8, 8, job)
    for (batch,) in job.loader(numbers(8), batch_size=8):
        train(model, optimizer, batch)
    job.close()
    with pytest.raises(UsageError, match="resume=True"):
        jobs(checkpoint_dir=tmp_path)
    with pytest.raises(torch_edl.errors.CheckpointError, match="another model"):
        counted(9, 8, jobs(checkpoint_dir=tmp_path, resume=True))


def test_the_cells_of_a_notebook_may_be_run_again(jobs: Any) -> None:
    """``init`` closes the job before, and ``prepare`` replaces what was prepared."""
    before, job = jobs(), jobs()
    assert before.closed
    model = Count(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):
        job.prepare(model, optimizer)
        for (batch,) in job.loader(numbers(8), batch_size=2, accumulate=2):
            train(model, optimizer, batch)
            kept = iter(job.loader(numbers(8)))  # never read
        assert job.step == 2
    assert model.w.tolist() == [2.0] * 8
    other, its = counted(8, 4, job)
    for (batch,) in job.loader(numbers(8), batch_size=4):
        train(other, its, batch)
    assert (job.step, other.w.tolist(), model.w.tolist()) == (2, [1.0] * 8, [2.0] * 8)
    kept.close()


def test_what_cannot_work_is_said(jobs: Any, tmp_path: Path) -> None:
    job = jobs()
    with pytest.raises(UsageError, match=r"call job\.prepare"):
        next(iter(job.loader(numbers(4))))
    model = Count(4, 4)
    with pytest.raises(UsageError, match="not list"):
        job.prepare([], torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(UsageError, match="not Count"):
        job.prepare(model, model)
    other = nn.Parameter(torch.zeros(3))
    with pytest.raises(UsageError, match=r"shape \(3,\) that the model does not have"):
        job.prepare(model, torch.optim.SGD([*model.parameters(), other], lr=1.0))
    job = jobs(checkpoint_dir=tmp_path)
    job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(UsageError, match="called twice"):
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
