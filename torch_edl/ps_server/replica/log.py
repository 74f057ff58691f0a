"""The owner's side of ``--durability replica``: a change is acknowledged once a peer server has it.

The peer is the server of the next shard, as named by the master. It has the whole state, a base and
the records since, or nothing; a new peer needs a new base. If the peer with the copy is gone,
changes are acknowledged without a copy once the master has noted that there is none. If the peer is
only unreachable, they wait. A successor of this server fetches base and records from the peer.
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
from torch_edl.ps_server.records import HEAD_BYTES, LogEntry, Record
from torch_edl.ps_server.replica import transfer
from torch_edl.ps_server.replica.copy_note import CopyNote
from torch_edl.ps_server.replica.peer import PeerGoneError, ReplicaPeer
from torch_edl.ps_server.replica.unsent import Unsent
from torch_edl.wire import cluster_pb2
from torch_edl.wire import replica_pb2 as pb
from torch_edl.wire.data_plane import MAX_FRAME_BYTES
from torch_edl.wire.framed import Framed
from torch_edl.wire.pserver_stub import PserverStub

log = logging.getLogger(__name__)

_MOST_KEPT = 512 << 20
_PATIENCE_S = 3.0


class ReplicaLog:
    """A :class:`~torch_edl.ps_server.records.Sink` at a peer.

    :meth:`heard` is called with each answer of the master. In a successor, call :meth:`take_over`
    first. Read :meth:`records` to the end before the first :meth:`append`.

    Args:
        incarnation: incarnation of this server.
        token: token of the job.
        folder: folder for a base in transfer; removed with the process.
        most_kept: maximum bytes of unsent records; beyond it, changes are rejected.
        patience_s: seconds without a peer that are not reported as a problem.
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
        self._condition = self._peer.condition  # guards the fields below
        self._name = self._peer.name
        self.folder = folder
        self._patience_s = patience_s
        self.base = Base()
        self.bytes = 0
        """Bytes of all records since the base."""
        self._complete = False  # the peer has all except unsent records
        self._copy_at = 0  # last peer with a complete copy; 0: none
        self._note = CopyNote()
        self._incomplete_since = time.monotonic()
        self.needs_base = False
        """True if the peer lacks records that are no longer in memory: it needs a snapshot."""
        self._is_base_made = False
        self._catches_up = False  # the last records before completion are sent
        self._alone_until = 0  # newest record acknowledged without a copy
        self._most_kept = most_kept
        self._unsent = Unsent(most_kept)
        self._last = 0
        self._durable = 0
        self._covered = 0  # value of `bytes` at the last rotation
        self._source: PserverStub | None = None  # peer with the predecessor's copy
        self._commit_lock = threading.Lock()  # held by the thread that sends
        self._introducer = threading.Thread(target=self._introduce, name="replica", daemon=True)

    # ---- the copy ----

    def keeper(self) -> int:
        """Return the incarnation of the peer that has all except unsent records; 0 if none has."""
        with self._condition:
            return self._peer.incarnation if self._complete else 0

    def note(self) -> tuple[int, bool]:
        """Return number (0: none) and content of the :class:`CopyNote` that the master has yet to
        store."""
        with self._condition:
            return self._note.number if self._note.is_pending else 0, self._note.has_copy

    def problem(self) -> str:
        """Return why pushes have not been acknowledged for a while; empty if they are."""
        with self._condition:
            soon = time.monotonic() < self._incomplete_since + self._patience_s
            if self._complete or self._is_alone or soon:
                return ""
            return f"{self._name}: pushes wait, {self._peer.why}"

    def waits(self) -> bool:
        """Return whether acknowledgements wait for an answer of the master."""
        with self._condition:
            return self._note.is_pending or not (self._complete or self._is_alone)

    def heard(self, peer: cluster_pb2.Server | None, noted: int) -> None:
        """Handle an answer of the master, which has stored the note of number ``noted``."""
        with self._condition:
            self._note.answered(noted)
            if self._peer.named(peer):
                self._incomplete()
                if self._copy_at not in (0, self._peer.incarnation):
                    # A lost server does not return, nor does its copy.
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
        """Send the records that the peer lacks; only then is the copy complete. Returns whether it
        is."""
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
        """Send the records in ``(after, until]``. Returns the number of the peer's last record."""
        while True:
            with self._condition:
                batch = self._unsent.batch(after, until)
            after = self._peer.call(stub, Framed(pb.ReplicateRequest(), batch)).message.last
            if after >= until:
                return after

    def _has(self, stub: PserverStub, last: int) -> bool:
        """Record the last record of the peer. Returns False if it has changed or lacks records."""
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
        """Bring a new peer up to date, as far as the records in memory suffice."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._peer.end or self._is_strange())
                if self._peer.end:
                    return
                stub = self._peer.stub
                assert stub is not None
                self._peer.tried()
            try:
                answer = self._peer.call(stub, Framed(pb.ReplicateRequest())).message
                with self._condition:
                    follows = self._unsent.forgotten <= answer.last <= self._last
                    whole = self._unsent.forgotten == 0
                if not (answer.complete and follows):
                    if answer.complete or not whole:
                        with self._condition:
                            self.needs_base = stub is self._peer.stub
                        continue
                    begin = Framed(pb.ReplicateRequest(begin=True))
                    answer = self._peer.call(stub, begin).message
                self._catch_up(stub, answer.last)
            except (grpc.RpcError, PeerGoneError) as error:
                self._away(stub, error)

    def _is_strange(self) -> bool:
        return not (self._complete or self.needs_base) and self._peer.is_fresh

    # ---- taking over ----

    def take_over(self) -> None:
        """Fetch the base from the predecessor's peer, and exclude earlier servers.

        Raises:
            StateLostError, StaleIncarnationError: the peer lacks it; this server has a successor.
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
        """Yield the records since the base, fetched from the peer.

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
        """Append an entry, see :meth:`torch_edl.ps_server.records.Sink.append`."""
        size = entry.size
        if size > MAX_FRAME_BYTES - HEAD_BYTES:  # a successor fetches the record as a frame
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
    """True: :meth:`wait_durable` waits for the peer."""

    def wait_durable(self, sequence: int) -> None:
        """Wait for durability, see :meth:`torch_edl.ps_server.records.Sink.wait_durable`."""
        while not self._may_acknowledge(sequence):
            # One thread sends for all that wait here.
            with self._commit_lock:
                if not self._may_acknowledge(sequence):
                    self._commit(sequence)

    def _may_acknowledge(self, sequence: int) -> bool:
        with self._condition:
            if self._is_alone:
                # A base in transfer needs the records after it: slow the workers down.
                if self._catches_up or (self._is_base_made and self._is_full(0)):
                    return False
                self._alone_until = max(self._alone_until, sequence)
                return True
            # The first acknowledgement waits for a note: with it, a successor looks for the copy.
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
        """Reject appends, and the acknowledgement of waiting records."""
        with self._condition:
            self._peer.close(reason)
        if self._introducer.is_alive():
            self._introducer.join()

    # ---- snapshots ----

    forces = False
    """False: snapshot files are not forced to a disk, since the peer keeps a copy."""

    def rotate(self) -> int:
        """Begin a snapshot. Returns the number of the last record in it."""
        with self._condition:
            self._covered = self.bytes
            return self._last

    @contextmanager
    def new_base(self) -> Iterator[Path]:
        """Yield a new folder for a snapshot, which is to be committed within the block."""
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
        """Send the files of a folder to the peer, as its new base.

        Args:
            sequence: number of the last record in the snapshot.
            newest: number of the last record that a part of the snapshot contains.

        Raises:
            OSError: there is no peer, or the peer was lost.
        """
        try:
            with self._condition:
                stub, had_copy = self._peer.stub, self._complete
            if stub is None:
                raise PeerGoneError("there is no peer")
            if had_copy and self._durable < newest:  # otherwise the copy would have a gap
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
