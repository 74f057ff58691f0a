"""The connection of a server to the master: one registration, and a heartbeat each second."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable

import grpc

from torch_edl.errors import EdlError
from torch_edl.processes import pressure, usage
from torch_edl.processes.process_group import end_own_group
from torch_edl.ps_server.durability.peer import Peer
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import MASTER_AWAY_S, Absence, Stub

log = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_HURRY_S = 0.2
_LEAVE_POLL_S = 0.2
_CALL_S = 5.0
_REGISTER_TIMEOUT_S = 30.0


class MasterLink:
    """The connection of one server to the master of its job.

    Args:
        on_fenced: called in a thread of this object when another server has the shard: this one was
            replaced while it was paused or disconnected.
        peer: log at another server, which the master names; None without ``--replica``.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        shard: int,
        incarnation: int,
        on_fenced: Callable[[], None],
        peer: Peer | None = None,
    ) -> None:
        self._stub = Stub(services.SERVERS, address, token)
        self._shard, self._incarnation = shard, incarnation
        self._on_fenced = on_fenced
        self._peer = peer
        self.version: Callable[[], int] = lambda: 0
        """Callback that returns the number of updates of the shard."""
        self.size: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Callback that returns the rows and the bytes of all tables of the shard."""
        self.counts: Callable[[bool], pb.ServerCounts | None] = lambda _: None
        """Callback that returns the counters of the server, with the most frequent ids if its
        argument is True; None before the server serves."""
        self.problem: Callable[[], str] = lambda: peer.problem if peer else ""
        """Callback that returns the reason why the server rejects pushes; empty if it accepts
        them."""
        self.leaving = False
        """True once the process was asked to end."""
        self.notice = ""
        """Text of the notice of preemption; empty if there was none."""
        self._tells_machine = self._tells_frequent_ids = False
        self._absence = Absence(_INTERVAL_S + _CALL_S)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="master-link", daemon=True)

    def start(self) -> None:
        """Start the heartbeats, before the shard is restored: that may take long."""
        self._thread.start()

    def register(
        self,
        address: str,
        *,
        data_plane: str = "",
        lost: str = "",
        updates_lost: int = 0,
        damage: str = "",
        watermarks: Watermarks | None = None,
    ) -> None:
        """Send the address of this server to the master.

        Args:
            data_plane: endpoint for pulls and pushes; empty if they use ``address``.
            lost: reason why the state of the shard is lost; empty if the server has all of it
                except ``updates_lost`` updates.
            damage: reason why these updates are lost; empty if an earlier server reported it.
            watermarks: watermarks of the records in the shard; None if its state is lost.

        Raises:
            EdlError: the master does not know this server.
        """
        request = pb.RegisterServerRequest(
            shard=self._shard,
            incarnation=self._incarnation,
            address=address,
            data_plane=data_plane,
            lost=lost,
            updates_lost=updates_lost,
            damage=damage,
            watermarks=None if watermarks is None else watermarks.to_proto(),
        )
        try:
            self._stub.insist(request, timeout_s=_REGISTER_TIMEOUT_S, away_s=MASTER_AWAY_S)
        except grpc.RpcError as error:
            where = self._stub.address
            raise EdlError(f"master {where}: registration rejected: {error.details()}") from None

    def tell(self, problem: str) -> None:
        """Report to the master why this process cannot serve its shard."""
        self.problem = lambda: problem
        self.beat()

    def leave(self, signals: Iterable[signal.Signals], *, within_s: float) -> None:
        """Continue to serve after a signal to end, until the master lets this server go, a
        heartbeat is not answered, another signal comes, or ``within_s`` seconds have passed."""
        self.leaving = True
        deadline = time.monotonic() + within_s
        while self.beat() and time.monotonic() < deadline:
            if signal.sigtimedwait(signals, _LEAVE_POLL_S) is not None:
                return

    def beat(self) -> bool:
        """Send one heartbeat; the master may be unreachable. Returns whether a server that is
        leaving is to stay for now."""
        note, has_copy = self._peer.note() if self._peer else (0, False)
        rows, size = self.size()
        request = pb.ServerHeartbeatRequest(
            shard=self._shard,
            incarnation=self._incarnation,
            version=self.version(),
            problem=self.problem(),
            leaving=self.leaving,
            notice=self.notice,
            keeper=self._peer.keeper() if self._peer else 0,
            note=note,
            has_copy=has_copy,
            rows=rows,
            bytes=size,
            counts=self.counts(self._tells_frequent_ids),
            machine=pressure.read()._asdict() if self._tells_machine else None,
            usage=pb.Usage(**usage.read()),
        )
        try:
            answer = self._stub.call(request, timeout_s=_CALL_S)
        except grpc.RpcError as error:
            log.debug("heartbeat: %s", error.code())
            if self._absence.failed() > MASTER_AWAY_S:
                # No process is left that would end this one.
                log.error("no answer from a master for %g s: this server ends", MASTER_AWAY_S)
                end_own_group()
            return False
        self._absence.answered()
        self._tells_machine = answer.tell_machine
        self._tells_frequent_ids = answer.tell_frequent_ids
        if not answer.known:
            self._closed.set()
            if not self.leaving:
                self._on_fenced()
            return False
        if self._peer:
            self._peer.heard(answer.peer if answer.HasField("peer") else None, answer.noted)
        return bool(answer.stay)

    def close(self) -> None:
        """Stop the heartbeats."""
        self._closed.set()
        self._stub.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=_CALL_S)

    def _run(self) -> None:
        try:
            while True:
                self.beat()
                hurries = self._peer is not None and self._peer.waits()
                if self._closed.wait(_HURRY_S if hurries else _INTERVAL_S):
                    return
        except ValueError:  # raised by grpc after close()
            if not self._closed.is_set():
                raise
