"""Collectives of arrays for frameworks without their own process group.

Each member sends to the next member and receives from the previous one. Each part of an array is
summed once, in the order of ranks, so all members get the same bits.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_compat.collectives.stream_listener import Purpose, StreamListener
from tf_compat.collectives.streams import Stream
from torch_edl.engine.ring.replicated import Bytes, RingBrokenError
from torch_edl.errors import UsageError

_HEAD = struct.Struct("<QQ")  # number of the message in its stream, size in bytes
_MAX_ADDRESSES_BYTES = 1 << 20
# A socket buffer takes a whole message up to this size although the receiver is not reading, so no
# other thread is needed to send. The slowest member never blocks here: its next member has received
# all earlier messages.
_INLINE_BYTES = 1 << 14
_SLICE_BYTES = 1 << 20  # small enough to be added while in the CPU cache


class StreamGroup:
    """A :class:`~torch_edl.engine.ring.replicated.RingGroup` whose tensors are arrays.

    Args:
        meeting: meeting place of this process.
        store: address of the meeting place of rank 0.
        ring: number of the ring.
        meet_s: seconds to wait for the other members.

    Raises:
        RingBrokenError: a member did not connect.
    """

    def __init__(
        self, meeting: StreamListener, store: str, ring: int, rank: int, size: int, *, meet_s: float
    ) -> None:
        self.ring, self.rank, self.size = ring, rank, size
        self._meeting = meeting
        self._meet_s = meet_s
        self._gone = threading.Event()
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self._direct: dict[tuple[int, bool], _Messages] = {}
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="ring-sender")
        self._scratch = np.empty(_SLICE_BYTES, np.uint8)
        meeting.enter(ring)
        deadline = time.monotonic() + meet_s
        try:
            with _broken_ring():
                self._addresses = self._meet(store, deadline)
                after, before = (rank + 1) % size, (rank - 1) % size
                self._next = _Messages(self._open(after, Purpose.NEXT))
                self._before = _Messages(self._take(before, Purpose.NEXT, deadline))
        except RingBrokenError as error:
            self.close()
            raise RingBrokenError(f"ring {ring} was not formed: {error}") from None

    def allreduce(self, flat: npt.NDArray[Any]) -> None:
        """Sum a contiguous array (n,) over all members in place. If the call fails, the contents of
        the array are undefined."""
        count, rank = self.size, self.rank
        ends = [len(flat) * part // count for part in range(count + 1)]

        def part(number: int) -> npt.NDArray[Any]:
            return flat[ends[number % count] : ends[number % count + 1]]

        for step in range(count - 1):
            self._exchange(part(rank - step), part(rank - step - 1), add=True)
        for step in range(count - 1):
            self._exchange(part(rank - step + 1), part(rank - step), add=False)

    def gather(self, payload: bytes) -> list[bytes]:
        parts = [b""] * self.size
        parts[self.rank] = payload
        for step in range(self.size - 1):
            with self._sending(np.frombuffer(parts[(self.rank - step) % self.size], np.uint8)):
                part = np.empty(self._before.size(), np.uint8)
                self._before.stream.receive(part)
                parts[(self.rank - step - 1) % self.size] = part.tobytes()
        return parts

    def send(self, content: Bytes, to: int) -> None:
        with _broken_ring():
            if (to, True) not in self._direct:
                self._direct[to, True] = _Messages(self._open(to, Purpose.DIRECT))
            self._direct[to, True].send(content)

    def receive(self, into: Bytes, source: int) -> None:
        with _broken_ring():
            if (source, False) not in self._direct:
                # No deadline: the source may send to other members first.
                self._direct[source, False] = _Messages(self._take(source, Purpose.DIRECT, None))
            self._direct[source, False].receive(into)

    def interrupt(self) -> None:
        with self._lock:
            self._gone.set()
            streams = list(self._streams)
        for stream in streams:
            stream.interrupt()
        self._meeting.wake()

    def close(self) -> None:
        self.interrupt()
        self._sender.shutdown()
        for stream in self._streams:
            stream.close()

    # ---- streams ----

    def _meet(self, store: str, deadline: float) -> list[str]:
        """Return the addresses of all members, in the order of ranks."""
        if self.rank:
            timeout_s = max(0.0, deadline - time.monotonic())
            stream = self._add(
                self._meeting.connect(store, self.ring, self.rank, Purpose.MEET, timeout_s)
            )
            stream.set_timeout(timeout_s)
            messages = _Messages(stream)
            messages.send_json(self._meeting.address)
            addresses: list[str] = messages.receive_json()
        else:
            arrived = [
                _Messages(self._take(rank, Purpose.MEET, deadline)) for rank in range(1, self.size)
            ]
            for each in arrived:
                each.stream.set_timeout(max(0.001, deadline - time.monotonic()))
            addresses = [self._meeting.address, *(each.receive_json() for each in arrived)]
            for each in arrived:
                each.send_json(addresses)
        if len(addresses) != self.size or not all(isinstance(each, str) for each in addresses):
            raise RingBrokenError(f"{len(addresses)} addresses of {self.size} members")
        return addresses

    def _open(self, to: int, purpose: Purpose) -> Stream:
        address = self._addresses[to]
        connect = self._meeting.connect
        return self._add(connect(address, self.ring, self.rank, purpose, self._meet_s))

    def _take(self, rank: int, purpose: Purpose, deadline: float | None) -> Stream:
        take = self._meeting.take
        return self._add(take(self.ring, rank, purpose, deadline=deadline, gone=self._gone))

    def _add(self, stream: Stream) -> Stream:
        with self._lock:
            self._streams.append(stream)
            gone = self._gone.is_set()
        if gone:
            stream.interrupt()
        return stream

    # ---- a step of a collective ----

    def _exchange(self, out: npt.NDArray[Any], into: npt.NDArray[Any], *, add: bool) -> None:
        with self._sending(out.view(np.uint8)):
            size = self._before.size()
            if size != into.nbytes:
                raise RingBrokenError(f"{size} bytes from the member before, not {into.nbytes}")
            if not add:
                self._before.stream.receive(into.view(np.uint8))
                return
            each = _SLICE_BYTES // into.itemsize
            for start in range(0, len(into), each):
                target = into[start : start + each]
                part = self._scratch[: target.nbytes]
                self._before.stream.receive(part)
                target += part.view(into.dtype)

    @contextmanager
    def _sending(self, content: Bytes) -> Iterator[None]:
        """Send to the next member while the caller receives from the previous one."""
        if self._gone.is_set():
            raise RingBrokenError("the ring is closed")
        with _broken_ring():
            if content.nbytes <= _INLINE_BYTES:
                self._next.send(content)
                yield
                return
            sending = self._sender.submit(self._next.send, content)
            try:
                yield
            except BaseException:
                # The next member may have stopped reading, and the sending thread would block.
                self.interrupt()
                sending.exception()
                raise
            sending.result()


class _Messages:
    """The messages of a stream. Their numbers and sizes reveal members that do not do the same."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._number = 0

    def send(self, content: Bytes) -> None:
        self._number += 1
        self.stream.send(_HEAD.pack(self._number, content.nbytes))
        if content.nbytes:
            self.stream.send(content)

    def size(self) -> int:
        """Receive the size of the next message, whose content the caller receives."""
        head = np.empty(_HEAD.size, np.uint8)
        self.stream.receive(head)
        self._number += 1
        number, size = _HEAD.unpack(head.tobytes())
        if number != self._number:
            raise RingBrokenError(f"message {number}, where {self._number} was to come")
        return int(size)

    def receive(self, into: Bytes) -> None:
        size = self.size()
        if size != into.nbytes:
            raise RingBrokenError(f"{size} bytes, where {into.nbytes} were to come")
        self.stream.receive(into)

    def send_json(self, value: object) -> None:
        self.send(np.frombuffer(json.dumps(value).encode(), np.uint8))

    def receive_json(self) -> Any:
        size = self.size()
        if size > _MAX_ADDRESSES_BYTES:
            raise RingBrokenError(f"addresses of {size} bytes")
        content = np.empty(size, np.uint8)
        self.stream.receive(content)
        try:
            return json.loads(content.tobytes())
        except ValueError as error:
            raise RingBrokenError(f"addresses that cannot be read: {error}") from None


@contextmanager
def _broken_ring() -> Iterator[None]:
    try:
        yield
    except (OSError, UsageError) as error:
        raise RingBrokenError(str(error) or type(error).__name__) from None
