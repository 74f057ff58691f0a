"""A task that is trained again must begin with the records of the attempt before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.unit.data.test_feeder import config, feeder, lease
from tests.unit.data.test_randomness import shuffled
from torch_edl.data.feeder import FeedError
from torch_edl.data.tasks import RecordTask
from torch_edl.training.leased import LeasedUpdates
from torch_edl.wire import master_pb2 as pb

Feed = Callable[..., Any]


OWN = shuffled(lambda count: np.random.default_rng().permutation(count))
CONSTANT = shuffled(lambda count: np.random.default_rng(0).permutation(count))
GLOBAL = shuffled(lambda count: np.random.permutation(count))  # which the feeder seeds


def begun(feed: Feed, known: pb.FirstRecords, offset: int, holds_model: bool) -> Any:
    """Return the first records that an attempt on a task reports; None: it reports none.

    Args:
        known: first records that an earlier attempt has reported.
        offset: number of records of the task that are in the model.
        holds_model: True if the whole model is in this process.
    """
    held = replace(lease(0, 40), first=known, retried=True, incarnation=1)
    task = RecordTask(held, feeder(config(4), feed).prepare(held))
    tasks = Mock(poll=Mock(side_effect=[task, None]))
    engine = Mock(depth=0, holds_model=holds_model)
    engine.committed.return_value = offset
    leases = Mock(incarnation=1)
    session = Mock()
    session.heartbeat.draining.is_set.return_value = False
    session.heartbeat.lost.is_set.return_value = False
    session.heartbeat.take_epoch_ends.return_value = []
    assert next(LeasedUpdates(engine, tasks, leases, session).updates()).first == offset
    return leases.begin.call_args and leases.begin.call_args.args[1]


@pytest.mark.parametrize(
    ("feed", "offset", "holds_model", "is_refused"),
    [
        (OWN, 0, True, False),  # nothing was trained: the task begins anew
        (OWN, 0, False, True),  # a push may have reached some of the servers
        (OWN, 8, True, True),
        (OWN, 8, False, True),
        (CONSTANT, 8, False, False),
        (GLOBAL, 8, False, False),
    ],
)
def test_a_feed_with_a_generator_of_its_own_is_refused(
    feed: Feed, offset: int, holds_model: bool, is_refused: bool
) -> None:
    first = begun(feed, pb.FirstRecords(), 0, holds_model)
    assert first.framework == "torch"
    if is_refused:
        with pytest.raises(FeedError, match=r"trained twice .*torch's global generator"):
            begun(feed, first, offset, holds_model)
        return
    again = begun(feed, first, offset, holds_model)
    assert (again is not None) == (offset == 0), "the first attempt has reported them already"


@pytest.mark.parametrize("known", [pb.FirstRecords(), pb.FirstRecords(records=40, framework="jax")])
def test_the_first_records_of_another_framework_are_not_compared(known: pb.FirstRecords) -> None:
    assert begun(OWN, known, 8, False).framework == "torch"
