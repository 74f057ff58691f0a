"""Collectives of one ring for torch, which can be interrupted.

A ring is formed once and never repaired. If a ring breaks, every member closes it and requests the
next one from the master. A closed ring must leave no open socket in the process, since the other
members would wait for it. Gloo's ``abort`` and ``shutdown`` do not end a stuck operation (torch
2.13), so this module finds Gloo's sockets and shuts them down.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from torch_edl.engine.ring.group import MAX_PAYLOAD_BYTES, MEET_S, Bytes, RingBrokenError

# The compiled parts of torch.distributed have no types.
dist: Any = torch.distributed

# No time limit for collectives, since a member may evaluate for an hour. The master knows which
# members are alive and ends a stuck collective.
_COLLECTIVE_S = 7 * 24 * 3600.0
_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
# Source location in a message: ``[/__w/pytorch/gloo/transport/tcp/pair.cc:553] ``
_SOURCE = re.compile(r"\[\S+:\d+\] (?=\S)")

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
    """The collectives of one ring, a :class:`~torch_edl.engine.ring.group.RingGroup` for torch.

    Args:
        store: address ``host:port`` of the store where the members meet.
        ring: number of the ring, used as a prefix of keys in the store.
        host: address of this machine for the other members.
        device: device of the model; tensors on a GPU are reduced by NCCL.
        meet_s: seconds to wait for the other members.

    Raises:
        RingBrokenError: a member did not connect.
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
        self._lock = threading.Lock()
        self._interrupted = False
        self._names: dict[int, str] = {}  # identity of each connection, by file descriptor
        self._listening: dict[int, str] = {}
        before = _sockets()
        try:
            client = _connect(store, meet_s)
            rendezvous = dist.PrefixStore(f"ring/{ring}", client)
            self._gloo: Any = _gloo(rendezvous, rank, size, host, meet_s)
            self._nccl: Any = _nccl(rendezvous, rank, size) if device.type == "cuda" else None
            self._device = device
        except (RuntimeError, OSError) as error:
            raise RingBrokenError(f"ring {ring} was not formed: {_first_line(error)}") from None
        port = int(store.rpartition(":")[2])
        # Gloo does not report its connections, so all sockets opened meanwhile are assumed to be
        # Gloo's. Another thread that opened one must connect again.
        for fd, name in _sockets().items():
            if before.get(fd) != name:
                if _is_listening(fd):
                    self._listening[fd] = name
                elif _is_connection(fd, besides=port):
                    self._names[fd] = name
        _open_groups.add(self)

    def allreduce(self, tensor: torch.Tensor) -> Any:
        """Start to sum ``tensor`` over all members in place; pass the result to :meth:`wait`."""
        with _broken_ring():
            return self._of(tensor).allreduce([tensor])

    def wait(self, works: Sequence[Any]) -> None:
        """Wait for started collectives. If one fails, the contents of all tensors are undefined."""
        with _broken_ring():
            for work in works:
                work.wait()
        self._require_whole()

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Copy ``tensor`` from rank ``source`` to all members, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        options.rootTensor = 0
        with _broken_ring():
            self._of(tensor).broadcast([tensor], options).wait()
        self._require_whole()

    def send(self, content: Bytes, to: int) -> None:
        tensor = torch.from_numpy(content)
        with _broken_ring():
            self._of(tensor).send([tensor], to, 0).wait()

    def receive(self, into: Bytes, source: int) -> None:
        tensor = torch.from_numpy(into)
        with _broken_ring():
            self._of(tensor).recv([tensor], source, 0).wait()

    def gather(self, payload: bytes) -> list[bytes]:
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(payload)
        self.wait([self.allreduce(sizes)])
        parts = []
        if not all(0 <= size <= MAX_PAYLOAD_BYTES for size in sizes.tolist()):
            raise RingBrokenError(f"payloads of {sizes.tolist()} bytes")
        for rank, size in enumerate(sizes.tolist()):
            part = torch.empty(size, dtype=torch.uint8)
            if rank == self.rank and size:
                part.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
            if size:
                self.broadcast(part, rank)
            parts.append(part.numpy().tobytes())
        return parts

    def interrupt(self) -> None:
        # Shut down a socket only if its descriptor has not been reused.
        with self._lock:
            if self._interrupted:
                return
            self._interrupted = True
            for fd in _still_open(self._names):
                with contextlib.suppress(OSError):
                    _shutdown(fd)
            if self._nccl is not None:
                self._nccl.abort()

    def close(self) -> None:
        self.interrupt()
        self._gloo = self._nccl = None
        _open_groups.discard(self)

    def forget(self) -> None:
        """Close the sockets in a forked child. An open copy would hide the death of the parent from
        the other members."""
        for fd in _still_open({**self._names, **self._listening}):
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
        if self._interrupted:
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


def _gloo(store: Any, rank: int, size: int, host: str, meet_s: float) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    # Timeout of the connections; the timeout of collectives is set below.
    options._timeout = timedelta(seconds=meet_s)
    group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, options)
    group._set_default_timeout(timedelta(seconds=_COLLECTIVE_S))
    return group


def _nccl(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=_COLLECTIVE_S)
    with _without_watchdog():
        return dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)


@contextlib.contextmanager
def _without_watchdog() -> Iterator[None]:
    """Disable the NCCL thread that ends this process when another member dies, for the group
    created in the ``with`` block. Groups that the script creates follow the environment."""
    before = os.environ.get(_ASYNC_ERRORS)
    os.environ[_ASYNC_ERRORS] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ASYNC_ERRORS]
        else:
            os.environ[_ASYNC_ERRORS] = before


def _sockets() -> dict[int, str]:
    """Return the file descriptors of sockets, with the kernel's identity of each socket."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _still_open(names: Mapping[int, str]) -> list[int]:
    """Return the descriptors that still refer to the same sockets; the kernel reuses numbers."""
    now = _sockets()
    return [fd for fd, name in names.items() if now.get(fd) == name]


def _is_listening(fd: int) -> bool:
    """Return True for a listening socket. Gloo ends the process if its own is shut down."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
        return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _is_connection(fd: int, *, besides: int) -> bool:
    """Return True for a TCP connection, except one to the store, which other rings may need."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
        if one.family in (socket.AF_INET, socket.AF_INET6):
            return besides not in (one.getpeername()[1], one.getsockname()[1])
    return False


def _shutdown(fd: int) -> None:
    with socket.socket(fileno=os.dup(fd)) as one:
        one.shutdown(socket.SHUT_RDWR)


def _first_line(error: BaseException) -> str:
    """Return the first line of a torch error, without source location and advice."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return _SOURCE.sub("", line).partition(". ")[0][:200]
