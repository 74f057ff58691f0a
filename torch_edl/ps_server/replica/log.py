"""The owner's side of ``--durability replica``: a change of a shard is acknowledged when a peer
server has it.

The peer is the server of the next shard, as the master says. It has the whole state of this shard,
a base and the records since, or none of it. A new peer needs a new base. When the peer that had the
copy is gone, there is nothing that waiting could save: once the master has noted that there is no
copy, changes are acknowledged without, until the new peer has one. If the peer is only out of
reach, they wait. A successor of this server takes base and records over from the peer.
"""

from __future__ import annotations

import errno
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc

from torch_edl.errors import StaleIncarnationError, StateLostError, UsageError
from torch_edl.ps_server.identity import JournalIdentity
from torch_edl.ps_server.journal.journal import Base
from torch_edl.ps_server.records import LogEntry, Record
from torch_edl.ps_server.replica import transfer
from torch_edl.ps_server.replica.copy_note import CopyNote
from torch_edl.ps_server.replica.peer import PeerGoneError, ReplicaPeer
from torch_edl.ps_server.replica.unsent import Unsent
from torch_edl.wire import cluster_pb2
from torch_edl.wire import replica_pb2 as pb
from torch_edl.wire.channel import MAX_MESSAGE_BYTES
from torch_edl.wire.framed import Framed
from torch_edl.wire.pserver_stub import PserverStub

log = logging.getLogger(__name__)

_MOST_KEPT = 512 << 20
_PATIENCE_S = 3.0
_BESIDE_RECORDS = 1 << 16


class ReplicaLog:
    """A :class:`~torch_edl.ps_server.records.Sink` at a peer.

    :meth:`heard` is called with each answer of the master. In a successor, call :meth:`take_over`
    first. Read :meth:`records` to the end before the first :meth:`append`.

    Args:
        incarnation: of this server.
        token: of the job.
        folder: for a base on its way; goes with the process.
        most_kept: bytes of records in memory that no peer has; beyond, changes are rejected.
        patience_s: seconds without a peer that are no problem yet.
    """

    def __init__(
        self,
        identity: JournalIdentity,
        incarnation: int,
        *,
        token: str,
        folder: Path,
        most_kept: int = _MOST_KEPT,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._peer = ReplicaPeer(identity, incarnation, token)
        self._condition = self._peer.condition  # of the fields below
        self._name = self._peer.name
        self.folder = folder
        self._patience_s = patience_s
        self.base = Base()
        self.bytes = 0
        """Of all records since the base."""
        self._complete = False  # the peer has the whole state, but for what is kept here
        self._copy_at = 0  # incarnation of the peer that had the whole state last; 0: none had
        self._note = CopyNote()
        self._incomplete_since = time.monotonic()
        self.needs_base = False
        """The peer lacks records that are kept nowhere: it needs a snapshot."""
        self._is_base_made = False
        self._catches_up = False  # the peer gets the last records before the copy is complete
        self._alone_until = 0  # the newest record that was acknowledged without a copy
        self._most_kept = most_kept
        self._unsent = Unsent(most_kept)
        self._last = 0
        self._durable = 0
        self._covered = 0  # of `bytes`, when the segment was ended
        self._source: PserverStub | None = None  # the peer of the predecessor
        self._commit_lock = threading.Lock()  # held by the thread that sends for all that wait
        self._introducer = threading.Thread(target=self._introduce, name="replica", daemon=True)

    # ---- the copy ----

    def keeper(self) -> int:
        """Incarnation of the peer that has all but what is on its way; 0: none has."""
        with self._condition:
            return self._peer.incarnation if self._complete else 0

    def note(self) -> tuple[int, bool]:
        """Number (0: none) and content of the note that the master is to make: see
        :class:`~torch_edl.ps_server.replica.copy_note.CopyNote`."""
        with self._condition:
            return self._note.number if self._note.is_pending else 0, self._note.has_copy

    def problem(self) -> str:
        """Why pushes have not been acknowledged for a while; empty: they are."""
        with self._condition:
            soon = time.monotonic() < self._incomplete_since + self._patience_s
            if self._complete or self._is_alone or soon:
                return ""
            return f"{self._name}: pushes wait, {self._peer.why}"

    def waits(self) -> bool:
        """Nothing can be acknowledged before the next answer of the master, or a later one."""
        with self._condition:
            return self._note.is_pending or not (self._complete or self._is_alone)

    def heard(self, peer: cluster_pb2.Server | None, noted: int) -> None:
        """The master answered a heartbeat; ``noted``: it has the note of that number."""
        with self._condition:
            self._note.answered(noted)
            if self._peer.named(peer):
                self._incomplete()
                if self._copy_at not in (0, self._peer.incarnation):
                    # A server that is gone does not come back: nor does the copy.
                    self._note.ask(has_copy=False)

    @property
    def _is_alone(self) -> bool:
        return self._note.is_alone and not self._complete

    def _away(self, stub: PserverStub, error: Exception) -> None:
        with self._condition:
            if self._peer.failed(stub, error):
                self._incomplete()

    def _incomplete(self) -> None:
        if self._complete:
            self._incomplete_since = time.monotonic()
        self._complete = self.needs_base = False

    def _catch_up(self, stub: PserverStub, last: int) -> bool:
        """Sends the records after the last one that the peer has, and among them those that were
        acknowledged without it: only then is the copy complete. Returns whether it is."""
        with self._condition:
            self._catches_up, until = True, self._last
        try:
            if last < until:
                last = self._send_kept(stub, last, until)
            return self._has(stub, last)
        finally:
            with self._condition:
                self._catches_up = False
                self._condition.notify_all()

    def _send_kept(self, stub: PserverStub, after: int, until: int) -> int:
        """Sends what is kept between two records; returns the number of the peer's last one."""
        while True:
            with self._condition:
                batch = self._unsent.batch(after, until)
            after = self._peer.call(stub, Framed(pb.ReplicateRequest(), batch)).message.last
            if after >= until:
                return after

    def _has(self, stub: PserverStub, last: int) -> bool:
        """The peer has the whole state up to a record. Returns False if there is another peer by
        now, or the peer lacks what was acknowledged."""
        with self._condition:
            if stub is not self._peer.stub:
                return False
            if last < max(self._unsent.forgotten, self._alone_until):
                self.needs_base = last < self._unsent.forgotten
                return False
            if not self._complete:
                log.info("%s: at %s up to record %d", self._name, stub.address, last)
            self._complete, self.needs_base = True, False
            self._copy_at = self._peer.incarnation
            self._note.ask(has_copy=True)
            self._unsent.forget(last)
            self._durable = max(self._durable, last)
            self._condition.notify_all()
            return True

    def _introduce(self) -> None:
        """Brings a new peer up to date, as far as records do that."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._peer.end or self._is_strange())
                if self._peer.end:
                    return
                stub = self._peer.stub
                assert stub is not None
                self._peer.tried()
            try:
                answer = self._peer.call(stub, pb.ReplicateRequest()).message
                with self._condition:
                    follows = self._unsent.forgotten <= answer.last <= self._last
                    whole = self._unsent.forgotten == 0
                if not (answer.complete and follows):
                    if answer.complete or not whole:
                        with self._condition:
                            self.needs_base = stub is self._peer.stub
                        continue
                    answer = self._peer.call(stub, pb.ReplicateRequest(begin=True)).message
                self._catch_up(stub, answer.last)
            except (grpc.RpcError, PeerGoneError) as error:
                self._away(stub, error)

    def _is_strange(self) -> bool:
        return not (self._complete or self.needs_base) and self._peer.is_fresh

    # ---- taking over ----

    def take_over(self) -> None:
        """Fetches the base that the predecessor left at its peer, and keeps earlier servers out.

        Raises:
            StateLostError: the peer does not have it.
            StaleIncarnationError: this server has a successor.
        """
        heard = -1
        while True:
            stub, heard = self._peer.after(heard)
            try:
                taken = self._peer.call(stub, pb.TakeReplicaRequest()).message
                if not taken.complete:
                    raise StateLostError(
                        f"{self._name}: its peer at {stub.address} has no complete copy"
                    )
                path = self.folder / "base"
                transfer.fetch(partial(self._peer.call, stub), path, taken.files)
            except (grpc.RpcError, PeerGoneError) as error:
                self._away(stub, error)
                continue
            with self._condition:
                if stub is not self._peer.stub:
                    continue
                self._source, self._copy_at = stub, self._peer.incarnation
                self._note.inherit()
            self.base = Base(taken.sequence, path if taken.files else None)
            self._last = taken.sequence
            return

    def records(self) -> Iterator[Record]:
        """The records since the base, from the peer.

        Raises:
            StateLostError: the peer was lost meanwhile.
        """
        heard = -1
        while self._source is not None:
            stub, heard = self._peer.after(heard)
            if stub is not self._source:
                raise StateLostError(f"{self._name}: the server that kept it is gone too")
            call = partial(self._peer.call, stub)
            try:
                for record in transfer.records_after(call, self._last):
                    self._last = record.sequence
                    self.bytes += len(record.payload)
                    yield record
                break
            except (grpc.RpcError, PeerGoneError) as error:
                self._away(stub, error)
        with self._condition:
            self._durable = self._last
            self._unsent.forget(self._last)
        shutil.rmtree(self.folder / "base", ignore_errors=True)
        self._introducer.start()

    # ---- appending ----

    def append(self, entry: LogEntry) -> int:
        """See :meth:`torch_edl.ps_server.records.Sink.append`."""
        size = len(entry.payload)
        if size > MAX_MESSAGE_BYTES - _BESIDE_RECORDS:
            raise UsageError(f"{self._name}: a change of {size} bytes; use more --ps")
        with self._condition:
            if self._peer.end:
                raise StaleIncarnationError(self._peer.end)
            if self._is_alone and not self._is_base_made and self._is_full(size):
                self._unsent.forget(self._last)  # the next peer will need a base
            if not self._unsent.has_room(size):
                raise OSError(errno.ENOBUFS, f"{self._name}: no room in memory, {self._peer.why}")
            self._last += 1
            self._unsent.append(self._last, entry)
            self.bytes += size
            self._condition.notify_all()
            return self._last

    is_slow = True
    """See :attr:`torch_edl.ps_server.records.Sink.is_slow`."""

    def wait_durable(self, sequence: int) -> None:
        """See :meth:`torch_edl.ps_server.records.Sink.wait_durable`."""
        while not self._may_acknowledge(sequence):
            # One thread sends for all that wait here; the others find it done.
            with self._commit_lock:
                if not self._may_acknowledge(sequence):
                    self._commit(sequence)

    def _may_acknowledge(self, sequence: int) -> bool:
        with self._condition:
            if self._is_alone:
                # A base on its way needs the records behind it: workers are to slow down.
                if self._catches_up or (self._is_base_made and self._is_full(0)):
                    return False
                self._alone_until = max(self._alone_until, sequence)
                return True
            # Before its first acknowledgement, this server makes sure that the master will look for
            # a copy where a successor is to continue.
            return self._note.is_made and self._durable >= sequence

    def _is_full(self, size: int) -> bool:
        return not self._unsent.has_room(size + self._most_kept // 2)

    def _commit(self, sequence: int) -> None:
        with self._condition:
            self._condition.wait_for(
                lambda: (
                    self._peer.end
                    or self._may_acknowledge(sequence)
                    or (self._note.is_made and self._complete)
                )
            )
            if self._peer.end:
                raise StaleIncarnationError(self._peer.end)
            stub = self._peer.stub
            batch = self._unsent.batch(self._unsent.forgotten, self._last)
            if not batch or stub is None or not self._complete:
                return
        try:
            answer = self._peer.call(stub, Framed(pb.ReplicateRequest(), batch)).message
        except (grpc.RpcError, PeerGoneError) as error:
            self._away(stub, error)
            return
        if answer.complete:
            self._has(stub, answer.last)
        else:
            self._away(stub, StateLostError("it has lost its copy"))

    def close(self, reason: str = "this server stops; ask the master for the servers") -> None:
        """What waits is not acknowledged, and appends fail from now on."""
        with self._condition:
            self._peer.close(reason)
        if self._introducer.is_alive():
            self._introducer.join()

    # ---- snapshots ----

    forces = False
    """No file of a snapshot is forced to a disk: the peer keeps a copy."""

    def rotate(self) -> int:
        """A snapshot is cut; returns the number of the last record in it."""
        with self._condition:
            self._covered = self.bytes
            return self._last

    @contextmanager
    def new_base(self) -> Iterator[Path]:
        """A new folder to write a snapshot in, which is to be committed within the block."""
        path = Path(tempfile.mkdtemp(prefix="snapshot-", dir=self.folder))
        self._is_base_made = True
        try:
            yield path
        finally:
            with self._condition:
                self._is_base_made = False
                self._condition.notify_all()
            shutil.rmtree(path, ignore_errors=True)

    def commit_snapshot(self, temporary: Path, sequence: int, newest: int) -> None:
        """Sends the files of a folder to the peer, as its new base.

        Args:
            sequence: of the last record that is in the snapshot.
            newest: of the last record that is in a part of the snapshot.

        Raises:
            OSError: there is no peer, or the peer was lost.
        """
        try:
            with self._condition:
                stub, had_copy = self._peer.stub, self._complete
            if stub is None:
                raise PeerGoneError("there is no peer")
            if had_copy and self._durable < newest:  # or, until they come, the copy had a gap
                self._send_kept(stub, self._durable, newest)
            transfer.send(partial(self._peer.call, stub), temporary, sequence, newest)
            if not self._catch_up(stub, sequence):
                raise PeerGoneError("there is another peer")
            with self._condition:
                self.base = Base(sequence, self.folder / "at-the-peer")
                self.bytes -= self._covered
                self._covered = 0
        except (grpc.RpcError, PeerGoneError) as error:
            if stub is not None:
                self._away(stub, error)
            raise OSError(errno.ENOTCONN, f"{self._name}: {self._peer.why}") from None
