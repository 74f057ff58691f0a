"""The rows of the next batch are pulled while a script computes, and the script leaves its loop, or
a server dies. Each record counts once: its row is the number of steps that it was in.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.api.counting import numbers
from tests.unit.api.served import Count, prepared, status_of
from tests.waiting import is_stopped, wait_for
from torch_edl.wire.channel import Stub

RECORDS, BATCH = 512, 8


def step(model: Any, optimizer: Any, numbers: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(numbers).backward()
    optimizer.step()


def counted(model: Any) -> list[float]:
    with torch.no_grad():
        found: list[float] = model.eval().rows(torch.arange(RECORDS)).flatten().tolist()
    model.train()
    return found


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_script_may_leave_its_loop_and_come_back(
    start: Callable[..., Stub], staleness: int
) -> None:
    start(staleness=staleness)
    job, model, optimizer = prepared(Count())
    loader = job.loader(numbers(RECORDS), batch_size=BATCH)
    assert torch.tensor(1e-30).mul(1e-15).item() == 0  # a denormal number
    done: list[int] = []
    for (batch,) in loader:
        step(model, optimizer, batch)
        assert job.step == len(done) // BATCH + 1
        done += batch.tolist()
        if len(done) == 20 * BATCH:
            state = job.state_dict()  # of the servers: they lack the batch in hand
            assert len(state["rows.ids"]) == state["weight"].item() == len(done) - BATCH
        if len(done) == 30 * BATCH:
            break
    # The batch in hand was not committed; those before it are in the model.
    del done[-BATCH:]
    assert job.step == 29
    job.collect(lambda rank, world: b"", lambda parts: None)
    assert model.weight.item() == len(done)
    assert [n for n, count in enumerate(counted(model)) if count] == sorted(done)
    # With a gradient too: the current rows, whatever was pulled ahead.
    assert model.rows(torch.tensor(done[-BATCH:])).tolist() == [[1.0]] * BATCH

    # The next loop trains what the first one has left, and its own pass.
    for (batch,) in loader:
        step(model, optimizer, batch)
    assert counted(model) == [2.0] * RECORDS
    assert model.weight.item() == 2 * RECORDS


@pytest.mark.parametrize("every", [0, pytest.param(10, marks=pytest.mark.slow)])
def test_a_server_dies_with_a_pull_ahead(
    start: Callable[..., Stub], tmp_path: Path, every: int
) -> None:
    """Without checkpoints everything begins again; else the model is that of the checkpoint. What
    was pulled from the servers before is of another incarnation, and is not used."""
    kept = {"checkpoint_dir": str(tmp_path / "kept"), "checkpoint_every": every} if every else {}
    master = start(staleness=1, **kept)
    job, model, optimizer = prepared(Count())
    loader = job.loader(numbers(RECORDS), batch_size=BATCH)
    steps, is_killed = 0, False

    for (batch,) in loader:
        optimizer.zero_grad()
        loss = model(batch)
        if not is_killed and steps > 20 and (not every or status_of(master).checkpoint):
            server = next(p for p in status_of(master).processes if p.role == "ps")
            engine = job._part._engine
            engine._pushed[1].wait()
            os.kill(server.pid, signal.SIGSTOP)
            wait_for(lambda pid=server.pid: is_stopped(pid), "the server stops")
            loss.backward()
            # Not in this step where the next batch is not prepared yet, so that nothing is pulled
            # ahead, or where the pull began before the server stopped, and is answered.
            pull = engine._ahead[0].pull if engine._ahead else None
            is_killed = pull is not None and not pull.done()
            os.kill(server.pid, signal.SIGKILL if is_killed else signal.SIGCONT)
        else:
            loss.backward()
        optimizer.step()
        steps += 1
    assert is_killed
    assert steps > RECORDS // BATCH
    assert counted(model) == [1.0] * RECORDS
    assert model.weight.item() == RECORDS
