"""Interfaces between the ring engine and a replicated model, and between the members of a ring, for
every framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from torch_edl.engine.replica import ModelReplica
from torch_edl.errors import EdlError

Bytes = npt.NDArray[np.uint8]

MEET_S = 10.0
"""Seconds for which the members of a new ring wait for each other. All members have just requested
the ring, so a member that has not connected by then is dead."""


class RingBrokenError(EdlError):
    """A member is lost or does not answer. Only the text of the cause is kept."""


class MeetingPlace(Protocol):
    """Address at which this process accepts the members of rings in which its rank is 0."""

    address: str
    """Address for the other members."""


class RingGroup(Protocol):
    """The connections of one ring.

    A failed call raises RingBrokenError, sooner or later in every member. A broken group is never
    repaired.
    """

    ring: int
    """Number of the ring."""
    rank: int
    size: int

    def gather(self, payload: bytes) -> list[bytes]:
        """Return the payloads of all members, in the order of ranks."""
        ...

    def send(self, content: Bytes, to: int) -> None:
        """Send bytes (n,) to one member, which calls :meth:`receive`."""
        ...

    def receive(self, into: Bytes, source: int) -> None:
        """Receive bytes from one member in place."""
        ...

    def interrupt(self) -> None:
        """End the current operation in all members. May be called from any thread at any time."""
        ...

    def close(self) -> None:
        """Close all connections, so that no other member waits for this process."""
        ...


class Phase(Enum):
    """Progress of an update, which determines the effect of a backward.

    Starting from ``IDLE``, each minibatch except the last goes from ``ACCUMULATE`` to
    ``ACCUMULATED``, and the last from ``REDUCE`` to ``REDUCED``; then the update ends. The only
    minibatch of a process that is alone is ``LOCAL``. A ``BROKEN`` update stays so until undone.
    """

    IDLE = auto()  # no current update: backward leaves gradients as they are
    WARM_UP = auto()  # gradients of backward are ignored
    LOCAL = auto()  # the gradient of backward is the gradient of the update
    ACCUMULATE = auto()  # other minibatches follow: backward stores weighted gradients
    ACCUMULATED = auto()  # gradients are stored; the script may read them until the next minibatch
    REDUCE = auto()  # the last minibatch: backward sums the gradients over the ring
    REDUCED = auto()  # gradients are summed: ``p.grad`` is the gradient of the update
    BROKEN = auto()  # the ring failed: gradients are those of this member only


Send = Callable[[], Sequence[float]]
"""Returns this member's control numbers; called when the last collective starts."""
Receive = Callable[[list[float]], str]
"""Receives the sums over all members; returns the reason to reject the update, or an empty
string."""


_UNUSABLE = (Phase.ACCUMULATED, Phase.BROKEN)
# Threshold for a sum of shares that should be 1, with rounding errors.
_WHOLE = 1 - 1e-3


class GradientReducer(ABC):
    """Sums the gradients of all members, each weighted by its share of the records.

    The sums travel with the numbers of :meth:`_told`: a flag for each gradient that this member
    has, two sums of shares, and the control numbers of the engine.
    """

    def __init__(self, send: Send, receive: Receive) -> None:
        self.phase = Phase.IDLE
        self.failure = ""
        """Reason for the phase ``BROKEN``; empty otherwise."""
        self.covered = 1.0
        """Fraction of the update's records that gave a gradient, over all members."""
        self._send, self._receive = send, receive
        self._group: Any = None
        self._share = 1.0
        self._share_before = 0.0  # sum of the shares of accumulated minibatches
        # Another backward may follow the sum only if no member had accumulated minibatches: the sum
        # of these is not repeated.
        self._repeatable = True
        self._leads = True

    def use(self, group: Any) -> None:
        """Set the group that :meth:`Replicated.connect` returned; None if this process is alone."""
        self._group = group
        self._reset()

    def begin_update(self) -> None:
        """Begin an update, discarding accumulated and reduced gradients."""
        self._reset()
        self._save_buffers()

    def begin_minibatch(self, share: float, *, last: bool = True, leads: bool = True) -> None:
        """Begin another minibatch of the update.

        Args:
            share: records of the minibatch divided by the records of the update of all members.
            last: True if no other minibatch of this member follows.
            leads: True if all members use the running statistics of this member.
        """
        self._clear_unusable()
        self._share, self._leads = share, leads
        if self.phase is Phase.BROKEN:
            return
        if self._group is None and share == 1.0:
            self.phase = Phase.LOCAL
        else:
            self.phase = Phase.REDUCE if last else Phase.ACCUMULATE

    def reduce_nothing(self) -> None:
        """Take part in the collectives of this update without a backward."""
        self._clear_unusable()
        self.phase, self._share = Phase.REDUCE, 0.0
        self._finish_backward()

    def undo_update(self) -> None:
        """Undo the effects of forward and backward since :meth:`begin_update`."""
        self._reset()
        self._restore_buffers()
        self.clear_gradients()

    def leave_out(self) -> None:
        """Undo the effects of the forward passes of an update that no optimizer has applied."""
        self._restore_buffers()

    def begin_warm_up(self) -> None:
        """Ignore the gradients of the following backward, until :meth:`undo_update`."""
        self.begin_update()
        self.phase = Phase.WARM_UP

    def end_update(self) -> None:
        """End the update. Parameters keep its gradients unless they are unusable."""
        self._clear_unusable()
        self.phase = Phase.IDLE

    def fail(self, why: str) -> None:
        """Mark the update as ``BROKEN``, with the reason."""
        # Keep only the text of the cause: a traceback would keep the ring's sockets open, and the
        # other members would wait.
        if self.phase is not Phase.BROKEN:
            self.phase, self.failure = Phase.BROKEN, why

    @abstractmethod
    def clear_gradients(self) -> None:
        """Remove all gradients, so that a step of an optimizer changes nothing."""

    def before_step(self, optimizer: Any, *, live: bool) -> None:
        """Prepare for a step of an optimizer.

        Args:
            live: False if the step must not change the model.
        """
        assert live, "the body of a model file calls step only while the engine is live"

    def check_gradients(self) -> None:
        """Let :meth:`not_finite` return True for gradients that are not finite, from now on. The
        body of a model file checks its loss instead."""
        return

    def not_finite(self, optimizer: Any) -> bool:
        """Return True if a gradient that the optimizer would apply is not finite, in all members
        alike."""
        return False

    @property
    def at_fault(self) -> int | None:
        """Rank of the member whose gradients are not finite; None if there are several."""
        return None

    def after_step(self) -> None:
        """Restore the gradients after a step of an optimizer, if :meth:`before_step` hid them."""
        return

    def forbid_accumulation(self) -> None:
        """Make the next backward raise UsageError if it adds to the gradients of this update, which
        no optimizer has applied. TensorFlow never adds up gradients, so it needs no check."""
        return

    @abstractmethod
    def _finish_backward(self) -> None:
        """Accumulate or reduce the gradients of a minibatch, according to the phase."""

    @abstractmethod
    def _save_buffers(self) -> None:
        """Save the buffers that a forward pass changes."""

    @abstractmethod
    def _restore_buffers(self) -> None:
        """Restore the buffers of the last :meth:`_save_buffers`."""

    def _reset(self) -> None:
        self.phase, self.failure, self._share_before = Phase.IDLE, "", 0.0

    def _told(self, has: Sequence[float]) -> list[float]:
        """Return the numbers of this member; ``has`` says which gradients it has."""
        return [*map(float, has), self._share, self._share_before, *self._send()]

    def _heard(self, sums: list[float], count: int) -> list[float] | None:
        """Evaluate the sums of :meth:`_told`. Return for each of the ``count`` gradients how many
        members have it; None if the update is rejected."""
        shares, before = sums[count : count + 2]
        self.covered, self._repeatable = shares + before, shares >= _WHOLE
        if why := self._receive(sums[count + 2 :]):
            self.fail(why)
            return None
        return sums[:count]

    def _clear_unusable(self) -> None:
        if self.phase in _UNUSABLE:
            self.clear_gradients()


class Replicated(Protocol):
    """A model and its optimizers, as trained by a member of a ring.

    Each framework has one. The engine imports no framework, and knows it by this interface.
    """

    @property
    def replica(self) -> ModelReplica:
        """State of the model and its optimizers."""
        ...

    def reducer(self, controls: int, send: Send, receive: Receive) -> GradientReducer:
        """Create the reducer of the model's gradients.

        Args:
            controls: number of control numbers that are summed together with the gradients.
        """
        ...

    def attach(
        self, before_step: Callable[[Any], None], after_step: Callable[[], None]
    ) -> Callable[[], None]:
        """Call both around each step of an optimizer; return a function that stops that."""
        ...

    def connect(
        self, store: str, ring: int, rank: int, size: int, *, host: str, meet_s: float
    ) -> RingGroup:
        """Form a ring with the other members.

        Args:
            store: address where the members meet.
            host: address of this machine for the other members.
            meet_s: seconds to wait for the other members.

        Raises:
            RingBrokenError: a member did not connect.
        """
        ...
