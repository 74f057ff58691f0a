"""Interface of the connections between the members of a ring, for every transport of tensors."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from torch_edl.errors import EdlError

Bytes = npt.NDArray[np.uint8]

MEET_S = 10.0
"""Seconds for which the members of a new ring wait for each other. All members have just requested
the ring, so a member that has not connected by then is dead."""
MAX_PAYLOAD_BYTES = 1 << 31
"""Largest payload of one member in :meth:`RingGroup.gather`."""


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
