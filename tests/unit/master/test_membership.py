"""Who lives, in simulated time."""

from __future__ import annotations

import math

import pytest

from master.state.membership import Membership
from torch_edl.wire import master_pb2 as pb


@pytest.fixture
def members() -> Membership:
    return Membership(heartbeat_timeout_s=10)


def beat(members: Membership, id: int, now: float, **changes) -> bool:
    member = members.get(id)
    told = {"phase": "training", "steps": 0, "records": 0, "loss": math.nan} | changes
    if member is None:
        return False
    return members.heartbeat(member, pb.HeartbeatRequest(worker_id=id, **told), now)


def test_a_member_without_a_heartbeat_has_no_loss_after_a_restart(members):
    members.register(1, 11, 0.0)
    members.register(2, 12, 0.0)
    beat(members, 1, 1.0, loss=4.0)
    restored = Membership(heartbeat_timeout_s=10)
    restored.from_state(members.to_state(), 2.0)
    assert restored.loss() == 4.0


def test_an_id_is_never_used_again(members):
    members.register(1, 11, 0.0)
    members.remove(1)
    assert members.register(1, 99, 1.0) is None
    assert not beat(members, 1, 1.0)
    assert members.get(1) is None


def test_only_a_change_is_progress(members):
    members.register(1, 11, 0.0)
    assert beat(members, 1, 1.0, steps=1)
    assert not beat(members, 1, 2.0, steps=1)
    assert beat(members, 1, 3.0, steps=1, phase="evaluating")


def test_the_mean_loss_is_of_those_that_report_one_and_lasts_when_they_have_left(members):
    assert math.isnan(members.loss())
    for id, loss in ((0, 1.0), (1, 3.0), (2, math.nan)):
        members.register(id, 1, 0.0)
        beat(members, id, 0.0, loss=loss, logged={"x": loss} if id == 1 else {})
    beat(members, 1, 2.0)  # an interval without a step keeps the last
    assert (members.loss(), members.logged()) == (2.0, {"x": 3.0})
    members.remove(1)
    assert (members.loss(), members.logged()) == (1.0, {"x": 3.0})
    members.remove(0)
    assert members.loss() == 1.0
    members.remove(0)  # again
    assert members.loss() == 1.0
    members.last_words(loss=2.0, logged={"x": 4.0})
    assert (members.loss(), members.logged()) == (2.0, {"x": 4.0})
