"""Collectives of one ring for torch, which can be interrupted.

A ring is formed once and never repaired. If a ring breaks, every member closes it and requests the
next one from the master. A closed ring must leave no open socket in the process, since the other
members would wait for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed

from torch_edl.engine.ring.replicated import MEET_S, Bytes, RingBrokenError
from torch_edl.pytorch import torch_internals

# The compiled parts of torch.distributed have no types.
dist: Any = torch.distributed

# Source location in a message: ``[/__w/pytorch/gloo/transport/tcp/pair.cc:553] ``
_SOURCE = re.compile(r"\[\S+:\d+\] (?=\S)")

# Gloo never ends an operation if the connection broke in the middle of its message:
# ``Pair::signalException`` (gloo/transport/tcp/pair.cc) wakes only operations that have not begun.
# So a wait is cut into slices, and ends some time after the ring was interrupted.
_SLICE_S = 0.2
_GRACE_S = 1.0

# Gloo takes no tensor of 2 GiB or more.
_PIECE_BYTES = 1 << 30

Wait = Callable[[], Any]
"""Waits for a started collective."""

_open_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _after_fork() -> None:
    for group in list(_open_groups):
        group.forget()


os.register_at_fork(after_in_child=_after_fork)


class StoreServer:
    """A key-value store for the rings in which the rank of this process is 0.

    Args:
        host: the only address to listen on.
    """

    def __init__(self, host: str) -> None:
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        self.address = f"{host}:{port}"
        """Address ``host:port`` of the store."""
        self._store = dist.TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=MEET_S),
            wait_for_workers=False,
            # Without a file descriptor, TCPStore listens on all interfaces.
            master_listen_fd=listener.detach(),
        )


class ProcessGroup:
    """The collectives of one ring; see :class:`~torch_edl.engine.ring.replicated.RingGroup`.

    Args:
        store: address ``host:port`` of the store where the members meet.
        ring: number of the ring, used as a prefix of keys in the store.
        host: address of this machine for the other members.
        device: device of the model; tensors on a GPU are reduced by NCCL.
        meet_s: seconds to wait for the other members.

    Raises:
        RingBrokenError: a member did not connect.
        UsageError: two members of one machine have the same GPU.
    """

    def __init__(
        self,
        store: str,
        ring: int,
        rank: int,
        size: int,
        *,
        host: str,
        device: torch.device,
        meet_s: float = MEET_S,
    ) -> None:
        self.ring = ring
        self.rank = rank
        self.size = size
        self.stuck = False
        """True if Gloo did not end an operation. It may still write to the tensors."""
        self._lock = threading.Lock()
        self._interrupted_at: float | None = None
        self._works: list[Any] = []  # collectives of Gloo that nobody has waited for
        self._names: dict[int, str] = {}  # identity of each connection, by file descriptor
        self._listening: dict[int, str] = {}
        before = torch_internals.sockets()
        try:
            client = _connect(store, meet_s)
            rendezvous = dist.PrefixStore(f"ring/{ring}", client)
            self._gloo: Any = torch_internals.make_gloo(rendezvous, rank, size, host, meet_s)
            self._nccl: Any = None
            if device.type == "cuda":
                self._nccl = torch_internals.make_nccl(rendezvous, rank, size, device, meet_s)
            self._device = device
        except (RuntimeError, OSError) as error:
            raise RingBrokenError(f"ring {ring} was not formed: {_first_line(error)}") from None
        port = int(store.rpartition(":")[2])
        # Gloo does not report its connections, so all sockets opened meanwhile are assumed to be
        # Gloo's. Another thread that opened one must connect again.
        for fd, name in torch_internals.sockets().items():
            if before.get(fd) != name:
                if torch_internals.is_listening(fd):
                    self._listening[fd] = name
                elif torch_internals.is_connection(fd, besides=port):
                    self._names[fd] = name
        _open_groups.add(self)

    def allreduce(self, tensor: torch.Tensor) -> Wait:
        """Start to sum ``tensor`` over all members in place; pass the result to :meth:`wait`."""
        return self._start(tensor, lambda group: group.allreduce([tensor]))

    def wait(self, waits: Sequence[Wait]) -> None:
        """Wait for started collectives. If one fails, the contents of all tensors are undefined."""
        with _broken_ring():
            for wait in waits:
                wait()
        self._require_whole()

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Copy ``tensor`` from rank ``source`` to all members, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        options.rootTensor = 0
        self.wait([self._start(tensor, lambda group: group.broadcast([tensor], options))])

    def send(self, content: Bytes, to: int) -> None:
        tensor = torch.from_numpy(content)
        with _broken_ring():
            self._wait_beside(self._of(tensor).send([tensor], to, 0))

    def receive(self, into: Bytes, source: int) -> None:
        tensor = torch.from_numpy(into)
        with _broken_ring():
            self._wait_beside(self._of(tensor).recv([tensor], source, 0))

    def gather(self, payload: bytes) -> list[bytes]:
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(payload)
        self.wait([self.allreduce(sizes)])
        parts = []
        for rank, size in enumerate(sizes.tolist()):
            part = torch.empty(size, dtype=torch.uint8)
            if rank == self.rank and size:
                part.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
            for start in range(0, size, _PIECE_BYTES):
                self.broadcast(part[start : start + _PIECE_BYTES], rank)
            parts.append(part.numpy().tobytes())
        return parts

    def interrupt(self) -> None:
        # Shut down a socket only if its descriptor has not been reused.
        with self._lock:
            if self._interrupted_at is not None:
                return
            self._interrupted_at = time.monotonic()
            for fd in torch_internals.still_open(self._names):
                with contextlib.suppress(OSError):
                    torch_internals.shut_down(fd)
            if self._nccl is not None:
                # It waits for the threads of NCCL, and the heartbeat, which may call, must go on.
                abort = self._nccl.abort
                threading.Thread(target=abort, name="nccl-abort", daemon=True).start()

    def close(self) -> None:
        self.interrupt()
        # The end of a group of NCCL waits for its watchdog, which may be writing a report of an
        # error. That of Gloo waits for all its operations.
        if self._nccl is not None:
            nccl, self._nccl = [self._nccl], None
            threading.Thread(target=nccl.clear, name="nccl-end", daemon=True).start()
        gloo, self._gloo = [self._gloo], None
        if not all(work.is_completed() for work in self._works):
            threading.Thread(target=gloo.clear, name="gloo-end", daemon=True).start()
        _open_groups.discard(self)

    def forget(self) -> None:
        """Close the sockets in a forked child. An open copy would hide the death of the parent from
        the other members."""
        for fd in torch_internals.still_open({**self._names, **self._listening}):
            with contextlib.suppress(OSError):
                os.close(fd)

    def _require_whole(self) -> None:
        """Raise RingBrokenError if the ring was interrupted.

        ``wait`` of NCCL blocks the GPU stream but not this thread, and an aborted collective ends
        without an error.
        """
        if self._nccl is None:
            return
        with _broken_ring():
            torch.cuda.current_stream(self._device).synchronize()
        if self._interrupted_at is not None:
            raise RingBrokenError("the ring was interrupted")

    def _start(self, tensor: torch.Tensor, start: Callable[[Any], Any]) -> Wait:
        with _broken_ring():
            work = start(self._of(tensor))
        if tensor.is_cuda:
            return work.wait  # type: ignore[no-any-return]
        self._works.append(work)
        return partial(self._wait_in_slices, work)

    def _wait_in_slices(self, work: Any) -> None:
        while not work.is_completed():
            try:
                work.wait(timedelta(seconds=_SLICE_S))
            except RuntimeError:
                self._check_progress()
        self._works.remove(work)
        work.wait()

    def _wait_beside(self, work: Any) -> None:
        """Wait for a transfer in another thread. If the wait for a transfer ends early, Gloo breaks
        the ring, which it does not for a collective; see :meth:`_wait_in_slices`."""
        ended, failures = threading.Event(), []

        def wait() -> None:
            try:
                work.wait()
            except RuntimeError as error:
                failures.append(error)
            ended.set()

        threading.Thread(target=wait, name="ring-transfer", daemon=True).start()
        while not ended.wait(_SLICE_S):
            self._check_progress()
        if failures:
            raise failures[0]

    def _check_progress(self) -> None:
        at = self._interrupted_at
        if at is not None and time.monotonic() - at > _GRACE_S:
            self.stuck = True
            raise RingBrokenError("the ring was interrupted")

    def _of(self, tensor: torch.Tensor) -> Any:
        group = self._nccl if tensor.is_cuda else self._gloo
        if group is None:
            raise RingBrokenError("the ring is closed")
        return group


@contextlib.contextmanager
def _broken_ring() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # From Python 3.12 on, frames of the traceback refer to the error. This cycle would keep the
        # works of the group, and its sockets, until the next garbage collection.
        error.__traceback__ = None
        raise RingBrokenError(_first_line(error)) from None


def _connect(address: str, meet_s: float) -> Any:
    host, _, port = address.rpartition(":")
    # Rank 0 listens before it requests the ring. If nothing listens, rank 0 is dead, and TCPStore
    # would retry for longer than its timeout (17 s instead of 10).
    socket.create_connection((host, int(port)), timeout=meet_s).close()
    return dist.TCPStore(
        host,
        int(port),
        is_master=False,
        timeout=timedelta(seconds=meet_s),
        wait_for_workers=False,
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of a torch error, without source location and advice."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return _SOURCE.sub("", line).partition(". ")[0][:200]
