"""The three lines in a script: rings of real processes, one killed, one that joins."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, random_split

from tests.unit.api.counting import (
    OPTIONS,
    counted,
    counting,
    finish,
    go_on,
    joining,
    numbers,
    told,
    train,
    waiting,
)
from tests.unit.engine.ring.rings import Member, office
from tests.waiting import wait_for
from torch_edl.checkpoint import layout
from torch_edl.engine.ring.membership import DivergedError
from torch_edl.errors import UsageError


def test_each_record_counts_once_per_epoch() -> None:
    with office(2) as one:
        members = [one.start(counting, OPTIONS) for _ in range(2)]
        for end in finish(members):
            assert end[1:] == (10, [2.0] * 40, 1)


@pytest.mark.parametrize("how", ["leave", "kill and join"])
def test_each_record_counts_once_when_members_come_and_go(how: str) -> None:
    with office(3) as one:
        members = waiting(one, counting, OPTIONS, 3, said=("step", 3))
        if how == "leave":
            members[2].flags.leaving.value = 1
            members.pop().tell("on")
        else:
            members.pop().kill()
            members.append(joining(one, counting, OPTIONS))
        go_on(members)
        ends = finish(members)
        for end in ends:
            assert end[1:3] == (10, [2.0] * 40)
        assert ends[0][3] >= 2


def test_a_stopped_member_holds_the_others_up_until_it_is_given_up() -> None:
    with office(3) as one:
        members = waiting(one, counting, OPTIONS, 3, said=("step", 3))
        members[1].signal(signal.SIGSTOP)
        go_on(members)
        lost = members.pop(1)
        assert not members[0].pipe.poll(0.5)
        one.drop(lost)
        for end in finish(members):
            assert end[1:] == (10, [2.0] * 40, 2)


# ---- a broken step ----


def leaving_out(member: Member) -> None:
    """Bodies that continue before backward, in one member or in all; and a loop that ends early."""
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
    # Two updates of the second loop, four of the third.
    weights = [3.0] * 6 + [2.0] * 2 + [1.0] * 4 + [2.0] * 4
    assert told(2, leaving_out) == [(10, weights)] * 2


def stepping_by_itself(member: Member) -> None:
    """The script kept its DataLoader, and then takes the job's."""
    job = member.job()
    model, optimizer = counted(8, 4, job)
    said = ""
    for (batch,) in DataLoader(numbers(8), batch_size=2):
        try:
            train(model, optimizer, batch)
        except UsageError as error:
            said = str(error)
            break
    optimizer.zero_grad()
    optimizer.step()  # as some do before a schedule begins: it moves nothing
    for (batch,) in job.loader(numbers(8), batch_size=2):
        train(model, optimizer, batch)
    member.tell((said, model.w.tolist()))
    job.close()


def test_a_process_may_not_train_alone_in_a_job_of_several() -> None:
    for said, weights in told(2, stepping_by_itself):
        assert "job.loader(dataset, batch_size=...)` in the place of the DataLoader" in said
        assert weights == [1.0] * 8


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
    for step, said in told(2, differing, 1):
        assert step == 4
        assert said.startswith("step 4: the parameters of the members differ")


def splitting(member: Member, seeds: list[int]) -> None:
    """A script that splits its dataset at random."""
    torch.manual_seed(seeds[member.worker])
    job = member.job()
    model, optimizer = counted(40, 4, job)
    half, _ = random_split(numbers(40), [20, 20])
    said = "not noticed"
    try:
        for (batch,) in job.loader(half, batch_size=2, shuffle=True):
            train(model, optimizer, batch)
    except DivergedError as error:
        said = str(error)
    member.tell((job.step, said, model.w.sum().item()))
    member.hear()


@pytest.mark.parametrize(("seeds", "steps"), [([1, 1], 5), ([1, 2], 0)])
def test_members_with_other_samples_are_told_before_the_first_step(
    seeds: list[int], steps: int
) -> None:
    for step, said, total in told(2, splitting, seeds):
        assert (step, total) == (steps, 4.0 * steps)
        assert ("random_split(dataset, lengths, generator=" in said) == (steps == 0)


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


def test_a_ring_that_no_master_hears_stops_counting() -> None:
    with office(2) as one:
        members = waiting(one, unheard, said=2)
        for each in members:
            each.flags.silent.value = 1
        go_on(members)
        wait_for(lambda: len(one.seats) > 2)
        for each in members:
            each.flags.silent.value = 0
        for bodies, weights, rings in (each.hear() for each in members):
            assert rings > 2
            assert bodies > 10
            assert weights == [1.0] * 40


def test_one_member_that_hears_the_master_is_enough() -> None:
    with office(2) as one:
        members = waiting(one, unheard, said=2)
        members[0].flags.silent.value = 1
        go_on(members)
        assert [each.hear() for each in members] == [(10, [1.0] * 40, 1)] * 2


# ---- checkpoints ----


@pytest.mark.parametrize("accept", [True, False])
def test_a_checkpoint_goes_on_in_another_world_with_the_rest(tmp_path: Path, accept: bool) -> None:
    with office(3) as one:
        one.accept = accept
        waiting(one, counting, OPTIONS, 6, str(tmp_path), 2, said=("step", 6))
        if not accept:
            assert layout.newest(tmp_path) is None
            return
        wait_for(lambda: layout.newest(tmp_path) is not None)
    with office(2) as one:
        one.restored_from = str(layout.newest(tmp_path))
        for each in [one.start(counting, OPTIONS, -1, str(tmp_path), 2) for _ in range(2)]:
            assert each.hear()[:3] == ("done", 10, [2.0] * 40)
        # The last one, when the script ends.
        wait_for(lambda: (layout.newest(tmp_path) or tmp_path).name == "step-0000000010")
