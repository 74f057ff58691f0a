"""What the members of a ring need of the connections between them, whatever carries the tensors."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from torch_edl.errors import EdlError

Bytes = npt.NDArray[np.uint8]

MEET_S = 10.0
"""How long the members of a new ring wait for each other. All members have just asked for the ring,
so a member that has not connected by then has died."""
MAX_PAYLOAD_BYTES = 1 << 31
"""Of one member in :meth:`Group.gather`."""


class RingBrokenError(EdlError):
    """A member is gone or does not answer. Only the text of the cause is kept."""


class MeetingPlace(Protocol):
    """Where this process awaits the members of the rings in which its rank is 0."""

    address: str
    """As the other members are told it."""


class Group(Protocol):
    """The connections of one ring. Each call that fails raises RingBrokenError, in every member
    sooner or later: a group is never mended."""

    ring: int
    """The number of the ring."""
    rank: int
    size: int

    def gather(self, payload: bytes) -> list[bytes]:
        """Returns the payloads of all members, in the order of ranks."""
        ...

    def send(self, content: Bytes, to: int) -> None:
        """Sends bytes, one-dimensional, to one member, which calls :meth:`receive`."""
        ...

    def receive(self, into: Bytes, source: int) -> None:
        """Receives in place what one member sends."""
        ...

    def interrupt(self) -> None:
        """Ends the operation that is under way, here and in the other members. From any thread, at
        any time."""
        ...

    def close(self) -> None:
        """Closes all connections, so that no other member waits for this process."""
        ...
