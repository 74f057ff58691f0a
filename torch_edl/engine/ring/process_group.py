"""One ring of processes: the sockets and collectives between them, and how to get out of both.

A ring is made once and never mended. When it breaks, every member closes it and asks the master
for the next one; nothing of it may survive in the process, since an open socket keeps the others
waiting. Gloo's ``abort`` and ``shutdown`` leave a stuck operation stuck (torch 2.13), so a ring
knows its sockets and shuts them down itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from torch_edl.errors import EdlError

log = logging.getLogger(__name__)

# Its compiled parts have no types.
dist: Any = torch.distributed

# How long the members of a new ring wait for each other. All of them have just asked for it, so
# one that is not there by then has died.
MEET_S = 10.0
# A collective has no limit of its own: a member may evaluate for an hour. What ends a stuck one
# is the master, which knows who lives.
_COLLECTIVE_S = 7 * 24 * 3600.0
_MAX_PAYLOAD_BYTES = 1 << 31


_open_groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()


def _after_fork() -> None:
    for group in list(_open_groups):
        group.forget()


os.register_at_fork(after_in_child=_after_fork)


class RingBrokenError(EdlError):
    """A member is gone or does not answer; the text is all that is kept of the cause."""


def local_address(towards: str) -> str:
    """The address of this machine that a peer reaches: the one that leads to the host
    ``towards``; the loopback address where that is loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))  # sends nothing
        return str(probe.getsockname()[0])


class StoreServer:
    """A key-value store that this process serves, for the rings whose rank 0 it is.

    Args:
        host: address to listen on; nobody else is let in elsewhere.
    """

    def __init__(self, host: str) -> None:
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        self.address = f"{host}:{port}"
        self._store = dist.TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=MEET_S),
            wait_for_workers=False,
            # A server that binds by itself listens on all interfaces.
            master_listen_fd=listener.detach(),
        )


class ProcessGroup:
    """The collectives of one ring.

    Args:
        store: ``host:port`` where the members meet.
        ring: number of the ring; its keys in the store are no other ring's.
        host: address of this machine for the others.
        device: of the model: NCCL carries the collectives of tensors on a GPU.
        meet_s: how long to wait for the others.

    Raises:
        RingBrokenError: a member did not come.
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
        self._names: dict[int, str] = {}  # connections, by file descriptor
        self._listening: dict[int, str] = {}
        before = _sockets()
        try:
            client = _connect(store, meet_s)
            rendezvous = dist.PrefixStore(f"ring/{ring}", client)
            self._gloo: Any = _gloo(rendezvous, rank, size, host, meet_s)
            self._nccl: Any = _nccl(rendezvous, rank, size) if device.type == "cuda" else None
        except (RuntimeError, OSError) as error:
            raise RingBrokenError(f"ring {ring} was not formed: {_first_line(error)}") from None
        port = int(store.rpartition(":")[2])
        # Connections of this moment; gloo does not name its own. One of another thread that was
        # opened meanwhile may be among them, and would have to be opened again.
        for fd, name in _sockets().items():
            if before.get(fd) != name:
                if _is_listening(fd):
                    self._listening[fd] = name
                elif _is_connection(fd, besides=port):
                    self._names[fd] = name
        _open_groups.add(self)

    def allreduce(self, tensor: torch.Tensor) -> Any:
        """Begins to sum ``tensor`` over all members, in place; ``wait`` on what it returns.

        Raises:
            RingBrokenError: it did not even begin.
        """
        with _broken_ring():
            return self._of(tensor).allreduce([tensor])

    def wait(self, works: Sequence[Any]) -> None:
        """Waits for collectives that were begun.

        Raises:
            RingBrokenError: one of them failed; none of the tensors can be relied on.
        """
        with _broken_ring():
            for work in works:
                work.wait()

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Copies ``tensor`` of the rank ``source`` to all, in place.

        Raises:
            RingBrokenError: it failed.
        """
        options = dist.BroadcastOptions()
        options.rootRank = source
        options.rootTensor = 0
        with _broken_ring():
            self._of(tensor).broadcast([tensor], options).wait()

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Sends a tensor of the CPU to one member, which calls :meth:`receive`.

        Raises:
            RingBrokenError: it failed.
        """
        with _broken_ring():
            self._of(tensor).send([tensor], to, 0).wait()

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Receives in place what one member sends.

        Raises:
            RingBrokenError: it failed.
        """
        with _broken_ring():
            self._of(tensor).recv([tensor], source, 0).wait()

    def gather(self, payload: bytes) -> list[bytes]:
        """What every member gave, in the order of ranks.

        Raises:
            RingBrokenError: it failed.
        """
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = len(payload)
        self.wait([self.allreduce(sizes)])
        parts = []
        if not all(0 <= size <= _MAX_PAYLOAD_BYTES for size in sizes.tolist()):
            raise RingBrokenError(f"parts of {sizes.tolist()} bytes")
        for rank, size in enumerate(sizes.tolist()):
            part = torch.empty(size, dtype=torch.uint8)
            if rank == self.rank and size:
                part.copy_(torch.frombuffer(bytearray(payload), dtype=torch.uint8))
            if size:
                self.broadcast(part, rank)
            parts.append(part.numpy().tobytes())
        return parts

    def interrupt(self) -> None:
        """Ends whatever operation is under way, on this side and on the others'. From any thread.

        Safe at any time: the sockets are known by number and identity.
        """
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
        """Lets go of everything, so that no other member waits for this one."""
        self.interrupt()
        self._gloo = self._nccl = None
        _open_groups.discard(self)

    def forget(self) -> None:
        """In a child that was forked: it must not keep the sockets of its parent open, or the
        others would not see the parent die."""
        for fd in _still_open({**self._names, **self._listening}):
            with contextlib.suppress(OSError):
                os.close(fd)

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
    # Rank 0 listened before it asked for the ring. Where nobody does, it is dead, and TCPStore
    # would try for longer than its timeout (17 s of 10).
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
    # While the members meet; operations wait as long as it takes.
    options._timeout = timedelta(seconds=meet_s)
    group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, options)
    group._set_default_timeout(timedelta(seconds=_COLLECTIVE_S))
    return group


def _nccl(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=_COLLECTIVE_S)
    return dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)


def _sockets() -> dict[int, str]:
    """File descriptors of sockets, and the identity that the kernel gives each."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _still_open(names: Mapping[int, str]) -> list[int]:
    """Those that are still what they were: numbers are used again."""
    now = _sockets()
    return [fd for fd, name in names.items() if now.get(fd) == name]


def _is_listening(fd: int) -> bool:
    """Gloo ends the process when its listening socket is shut down."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
        return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def _is_connection(fd: int, *, besides: int) -> bool:
    """A TCP connection, but none with the store, which other rings may need."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
        if one.family in (socket.AF_INET, socket.AF_INET6):
            return besides not in (one.getpeername()[1], one.getsockname()[1])
    return False


def _shutdown(fd: int) -> None:
    with socket.socket(fileno=os.dup(fd)) as one:
        one.shutdown(socket.SHUT_RDWR)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
