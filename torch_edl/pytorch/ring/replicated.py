"""A torch model that every member of a ring holds completely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_edl.engine.ring.replicated import Phase, Receive, Send
from torch_edl.pytorch.gradient_hooks import on_step
from torch_edl.pytorch.replica import Replica
from torch_edl.pytorch.ring.process_group import ProcessGroup
from torch_edl.pytorch.ring.reducer import Reducer


class ReplicatedTorchModel:
    """A torch model; see :class:`~torch_edl.engine.ring.replicated.Replicated`.

    Args:
        alone: True if no other process ever trains the model.
    """

    def __init__(self, replica: Replica, *, alone: bool = False) -> None:
        self.replica = replica
        self._alone = alone
        self._reducer: Reducer

    def reducer(self, controls: int, send: Send, receive: Receive) -> Reducer:
        self._reducer = Reducer(self.replica.model, controls, send, receive)
        return self._reducer

    def attach(
        self, before_step: Callable[[Any], None], after_step: Callable[[], None]
    ) -> Callable[[], None]:
        def is_free() -> bool:
            return self._alone and self._reducer.phase in (Phase.IDLE, Phase.LOCAL)

        hooks = [
            hook
            for optimizer in self.replica.optimizers
            for hook in (
                on_step(optimizer, before_step, is_free),
                optimizer.register_step_post_hook(lambda *_: after_step()),
            )
        ]

        def detach() -> None:
            for hook in hooks:
                hook.remove()

        return detach

    def connect(
        self, store: str, ring: int, rank: int, size: int, *, host: str, meet_s: float
    ) -> ProcessGroup:
        device = self.replica.device
        return ProcessGroup(store, ring, rank, size, host=host, device=device, meet_s=meet_s)
