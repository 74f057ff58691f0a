"""A Keras model of which every member of a ring has a complete copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_compat.replica import Replica
from tf_compat.ring.reducer import Reducer
from tf_compat.trained import TrainedModel
from torch_edl.engine.ring.replicated import Receive, Send
from torch_edl.engine.ring.stream_group import StreamGroup
from torch_edl.engine.ring.stream_listener import StreamListener


class ReplicatedKerasModel:
    """Implements :class:`~torch_edl.engine.ring.replicated.Replicated`.

    Args:
        meeting: endpoint at which other members reach this process.
    """

    def __init__(self, trained: TrainedModel, replica: Replica, meeting: StreamListener) -> None:
        self.replica = replica
        self._trained = trained
        self._meeting = meeting

    def reducer(self, controls: int, send: Send, receive: Receive) -> Reducer:
        return Reducer(self._trained, controls, send, receive)

    def attach(
        self, before_step: Callable[[Any], None], after_step: Callable[[], None]
    ) -> Callable[[], None]:
        trained = self._trained
        return trained.before_step(lambda: before_step(trained.optimizer))

    def connect(
        self, store: str, ring: int, rank: int, size: int, *, host: str, meet_s: float
    ) -> StreamGroup:
        return StreamGroup(self._meeting, store, ring, rank, size, meet_s=meet_s)
