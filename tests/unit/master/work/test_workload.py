"""How far a script is in its data, as status tells it."""

from __future__ import annotations

import math

import pytest

from master.state.membership import Membership
from master.state.work.workload import ScriptProgress
from torch_edl.wire import master_pb2 as pb


def tell(
    progress: ScriptProgress, index: int, position: int, *, of: int = 100, before: int = 0, **more
) -> None:
    told = pb.HeartbeatRequest(
        pass_index=index, position=position, pass_records=of, records_before=before, **more
    )
    progress.heard(told, counts=True)


def seen(progress: ScriptProgress, *, finished: bool = False) -> tuple[int, int, int, int, int]:
    status = pb.GetStatusResponse()
    progress.describe(status, finished=finished)
    done, total = status.records_done, status.records_total
    return status.epoch, status.epochs, done, total, status.records_begun


def test_a_loop_of_the_scripts_own_shows_the_pass_at_hand() -> None:
    progress = ScriptProgress()
    tell(progress, 0, 40)
    assert seen(progress) == (0, 0, 40, 100, 0)
    tell(progress, 0, 30)  # another member lags behind
    # Pass 1 was an evaluation; progress may begin and end between two heartbeats.
    tell(progress, 2, 20, epoch=1, before=100)
    assert seen(progress) == (1, 0, 120, 200, 100)
    tell(progress, 2, 100, epoch=2, before=100)
    assert seen(progress, finished=True) == (2, 2, 200, 200, 100)


def test_epochs_that_the_script_told_of_count_from_the_beginning() -> None:
    progress = ScriptProgress()
    tell(progress, 0, 40, epochs=3, records_to_come=200)
    assert seen(progress) == (0, 3, 40, 300, 0)
    tell(progress, 2, 100, epoch=2, epochs=3, before=100, records_to_come=100)
    assert seen(progress) == (2, 3, 200, 300, 0)


def test_a_stream_has_no_total() -> None:
    progress = ScriptProgress()
    tell(progress, 0, 40, of=0)
    assert seen(progress) == (0, 0, 40, 0, 0)
    tell(progress, 1, 10, of=0, epoch=1, before=40)
    assert seen(progress) == (1, 0, 50, 0, 40)


def test_what_was_logged_stays_when_the_last_worker_leaves() -> None:
    members = Membership(heartbeat_timeout_s=1.0)
    assert math.isnan(members.loss())
    for id, loss in enumerate([1.0, 3.0]):
        member = members.register(id, id, 0.0)
        assert member is not None
        member.loss, member.logged = loss, {"loss": loss, "acc": 0.5}
    assert members.loss() == pytest.approx(2.0)
    members.remove(0)
    assert members.logged() == {"loss": 3.0, "acc": 0.5}
    members.remove(1)
    assert members.loss() == pytest.approx(3.0)
    assert members.logged() == {"loss": 3.0, "acc": 0.5}
    members.last_words(loss=2.0, logged={"loss": 2.0})
    assert members.loss() == pytest.approx(2.0)
    assert members.logged() == {"loss": 2.0, "acc": 0.5}
