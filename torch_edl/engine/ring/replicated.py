"""What the engine of the ring needs of a model that every member holds whole, whatever its
framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.engine.position import Position
from torch_edl.engine.ring.group import Bytes, Group
from torch_edl.tables.watermarks import Watermarks


class SharedReplica(Protocol):
    """What all members of a ring hold alike."""

    model: Any
    position: Position

    def outgoing(self) -> tuple[dict[str, Any], list[Bytes]]:
        """The state for another member: a header of plain JSON, and the bytes of each tensor."""
        ...

    def incoming(self, header: dict[str, Any]) -> tuple[list[Bytes], Callable[[], None]]:
        """Memory for a state that another member sends, by its header, and what takes the state
        over when all of it is there; nothing changes before."""
        ...

    def restore(self, folder: Path, *, values_only: bool) -> Manifest | None:
        """See :meth:`~torch_edl.engine.replica.Replica.restore`."""
        ...

    def snapshot(self, watermarks: Watermarks) -> Callable[[Path], Snapshot]:
        """See :meth:`~torch_edl.engine.replica.Replica.snapshot`."""
        ...

    def digest(self) -> int:
        """A 32-bit checksum of all parameters, bit by bit."""
        ...


class Phase(Enum):
    """How far an update is, and so what a backward does.

    From ``IDLE``, each minibatch but the last goes from ``ACCUMULATE`` to ``ACCUMULATED``, the last
    from ``REDUCE`` to ``REDUCED``, then the update ends. One minibatch of a process that is alone
    is ``LOCAL``. An update that turns ``BROKEN`` stays so until it is undone.
    """

    IDLE = auto()  # no update is open: backward leaves gradients as they are
    WARM_UP = auto()  # what backward gives counts for nothing
    LOCAL = auto()  # what backward gives is the gradient of the update
    ACCUMULATE = auto()  # other minibatches follow: backward puts weighted gradients aside
    ACCUMULATED = auto()  # backward did; until the next minibatch a script may look at gradients
    REDUCE = auto()  # the last minibatch: backward sums the gradients over the ring
    REDUCED = auto()  # backward did: ``p.grad`` is the gradient of the update
    BROKEN = auto()  # the ring failed: gradients are those of this member alone


Send = Callable[[], Sequence[float]]
"""Gives this member's control numbers when the last collective begins."""
Receive = Callable[[list[float]], str]
"""Is called with their sums over all members. It returns an empty text, or why the update is
rejected."""


_UNUSABLE = (Phase.ACCUMULATED, Phase.BROKEN)


class Phases(ABC):
    """What the phases mean for a :class:`Reducer` of any framework; it is to inherit this."""

    phase = Phase.IDLE
    failure = ""

    @abstractmethod
    def begin_update(self, *, can_undo: bool = False) -> None: ...

    @abstractmethod
    def clear_gradients(self) -> None: ...

    def begin_warm_up(self) -> None:
        self.begin_update(can_undo=True)
        self.phase = Phase.WARM_UP

    def end_update(self) -> None:
        """Closes the update; the parameters keep its gradients, but none that is unusable."""
        self._clear_unusable()
        self.phase = Phase.IDLE

    def fail(self, why: str) -> None:
        # Only a text is kept of the cause: a traceback would keep the sockets of the ring open, and
        # the other members waiting.
        if self.phase is not Phase.BROKEN:
            self.phase, self.failure = Phase.BROKEN, why

    def _clear_unusable(self) -> None:
        if self.phase in _UNUSABLE:
            self.clear_gradients()


class Reducer(Protocol):
    """Turns the gradients of the members into their sum, each weighted by its share of the records.
    The control numbers travel with the gradients."""

    phase: Phase
    failure: str
    """Why the phase is ``BROKEN``."""
    covered: float
    """Share of the update's records that gave a gradient, over all members."""

    def use(self, group: Any) -> None:
        """Reduces over this group, which :meth:`Replicated.connect` made, from now on; None: this
        process is alone."""
        ...

    def begin_update(self, *, can_undo: bool = False) -> None:
        """Forgets what was accumulated and reduced.

        Args:
            can_undo: note what :meth:`undo_update` needs.
        """
        ...

    def begin_minibatch(self, share: float, *, last: bool = True, leads: bool = True) -> None:
        """The next backward is of another minibatch of the update.

        Args:
            share: its records over those of the whole update, of all members.
            last: no other minibatch of this member follows.
            leads: all members take the running statistics of this one.
        """
        ...

    def begin_warm_up(self) -> None:
        """The next backward counts for nothing; :meth:`undo_update` ends it."""
        ...

    def reduce_nothing(self) -> None:
        """Takes part in the collectives of this update without a backward."""
        ...

    def end_update(self) -> None:
        """Closes the update."""
        ...

    def undo_update(self) -> None:
        """Takes back what forward and backward did since :meth:`begin_update`."""
        ...

    def clear_gradients(self) -> None:
        """Removes all gradients, so that an optimizer that steps changes nothing."""
        ...

    def fail(self, why: str) -> None:
        """The update cannot be made."""
        ...

    def before_step(self, optimizer: Any, *, live: bool) -> None:
        """An optimizer is about to step.

        Args:
            live: False: the step must change nothing.
        """
        ...

    def after_step(self) -> None:
        """The optimizer has stepped."""
        ...

    def forbid_accumulation(self) -> None:
        """No optimizer took the gradients of this update: the next backward raises UsageError if it
        adds to them."""
        ...


class Replicated(Protocol):
    """A model and its optimizers, as a member of a ring trains them."""

    @property
    def replica(self) -> SharedReplica:
        """The state of the model and of its optimizers."""
        ...

    def reducer(self, controls: int, send: Send, receive: Receive) -> Reducer:
        """What sums its gradients.

        Args:
            controls: how many control numbers travel with the gradients.
        """
        ...

    def attach(
        self, before_step: Callable[[Any], None], after_step: Callable[[], None]
    ) -> Callable[[], None]:
        """Calls the two around each step of an optimizer; returns what ends that."""
        ...

    def connect(
        self, store: str, ring: int, rank: int, size: int, *, host: str, meet_s: float
    ) -> Group:
        """Forms a ring with its other members.

        Args:
            store: where the members meet.
            host: address of this machine for the other members.
            meet_s: seconds to wait for the other members.

        Raises:
            RingBrokenError: a member did not connect.
        """
        ...
