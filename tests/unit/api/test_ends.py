"""How processes end: at the end of the script, asked to leave, or by Ctrl-C; the model is not lost
with them."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_edl
from tests.unit.api.counting import counted, counting, go_on, joining, numbers, told, train, waiting
from tests.unit.engine.ring.rings import Member, office
from tests.waiting import HANG_S, wait_for
from torch_edl.api.ending import Ending
from torch_edl.checkpoint import layout
from torch_edl.errors import EdlError

OPTIONS = {"batch_size": 4, "global_batch_size": 8, "shuffle": True}


def saving(member: Member) -> None:
    """A script that writes its model at the end, as all do."""
    job = member.job()
    # Who comes later is not the one to write, whatever place the launcher gave it.
    assert job.is_main == (member._ring_then == 0)
    model, optimizer = counted(40, 8, job)
    for (batch,) in job.loader(numbers(40), **OPTIONS):
        train(model, optimizer, batch)
    scores = job.collect(lambda rank, world: b"x", len)
    if job.is_main:
        member.tell(("saves", job.step, model.w.tolist(), scores, job.world_size))
        member.hear()
    job.close()
    member.tell(("closed", len(member.seats)))


def test_rank_0_dies_while_it_saves_and_another_one_does() -> None:
    """The remedy: ``Membership.leave`` stands by until the script of rank 0 is over."""
    with office(3) as one:
        members = [one.start(saving) for _ in range(3)]
        wait_for(lambda: any(each.pipe.poll() for each in members))
        (main,) = [each for each in members if each.pipe.poll()]
        assert main.hear() == ("saves", 5, [1.0] * 40, 3, 3)
        others = [each for each in members if each is not main]
        wait_for(lambda: len(one.ring.living()) == 1)
        assert not any(each.pipe.poll(0.1) for each in others), "they wait"
        main.kill()
        new = one.start(saving)
        said = new.hear()
        assert said == ("saves", 5, [1.0] * 40, 3, 2), "the model and the results of the others"
        new.tell("on")
        assert new.hear()[0] == "closed"
        # One of them gave the model, in a ring of its own; neither trained again.
        assert sorted(each.hear()[1] for each in others) == [1, 2]


def test_all_are_asked_to_leave_and_who_waits_gets_the_model() -> None:
    """The remedy: ``RingEngine.reform_if_asked`` hands over."""
    with office(2) as one:
        members = waiting(one, counting, OPTIONS, 2, said=("step", 2))
        joiner = joining(one, counting, OPTIONS)
        for each in members:
            each.flags.leaving.value = 1
            each.tell("on")
        assert joiner.hear()[:3] == ("done", 5, [1.0] * 40)
        for each in members:
            each.process.join(HANG_S)
            assert each.process.exitcode == 0


def test_the_last_ones_to_leave_write_a_checkpoint(tmp_path: Path) -> None:
    with office(2) as one:
        members = waiting(one, counting, OPTIONS, 2, str(tmp_path), said=("step", 2))
        for each in members:
            each.flags.leaving.value = 1
        go_on(members)
        for each in members:
            each.process.join(HANG_S)
            assert each.process.exitcode == 0
        found = layout.newest(tmp_path)
        assert found is not None
        assert layout.read(found).steps == 3
    assert told(1, counting, OPTIONS, -1, str(tmp_path)) == [("done", 5, [1.0] * 40, 1)]


def lonely(member: Member) -> None:
    job = member.job()
    model, optimizer = counted(40, 8, job)
    heard: list[Any] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    logging.getLogger("torch_edl").addHandler(handler)
    try:
        for (batch,) in job.loader(numbers(40), **OPTIONS):
            member._flags.leaving.value = 1
            train(model, optimizer, batch)
    finally:
        member.tell([record.getMessage() for record in heard])


def test_the_last_one_without_a_checkpoint_says_what_is_lost() -> None:
    (texts,) = told(1, lonely)
    (text,) = [text for text in texts if "is lost" in text]
    assert "1 updates" in text
    assert "checkpoint_dir=" in text


# ---- the end of a process ----


def ending() -> Ending:
    return Ending(lambda: None, lambda: False)


def test_an_exit_code_is_no_end() -> None:
    before = sys.exit
    one = ending()
    one.watch()
    try:
        for code in (None, 0):
            with pytest.raises(SystemExit):
                sys.exit(code)
            assert one.finished
        with pytest.raises(SystemExit) as caught:
            sys.exit("no")
        assert caught.value.code == "no"
        assert not one.finished
    finally:
        one.forget()
    assert sys.exit == before


def test_an_error_of_an_earlier_cell_is_none_of_this_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", EdlError("of a cell before"), raising=False)
    one = ending()
    one._at_exit()
    assert one.finished
    monkeypatch.setattr(sys, "last_value", EdlError("of this one"), raising=False)
    one._at_exit()
    assert not one.finished


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_after_the_update_with_a_checkpoint(tmp_path: Path, times: int) -> None:
    job = torch_edl.init(checkpoint_dir=tmp_path)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    data = torch.arange(32.0)[:, None]
    came = 0

    def train() -> None:
        nonlocal came
        for x in job.loader(data, batch_size=4):
            came += 1
            if came == 3:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    try:
        with pytest.raises(KeyboardInterrupt):
            train()
    finally:
        job.ending.failed = True
        job.close()
    assert came == 3
    found = [path.name for path in layout.complete(tmp_path)]
    assert found == ([layout.step_dir(tmp_path, 3).name] if times == 1 else [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
