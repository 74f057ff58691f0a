"""A log at a peer server: a change is acknowledged once the peer has it.

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
from torch_edl.ps_server.durability import transfer
from torch_edl.ps_server.durability.connection import CopyNote, PeerConnection, PeerGoneError
from torch_edl.ps_server.durability.identity import JournalIdentity
from torch_edl.ps_server.durability.log import Base, Damage
from torch_edl.ps_server.durability.records import HEAD_BYTES, LogEntry, Record
from torch_edl.ps_server.durability.transfer import Unsent
from torch_edl.wire import cluster_pb2
from torch_edl.wire import replica_pb2 as pb
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.pserver_stub import PserverStub
from torch_edl.wire.data_plane.sockets import MAX_FRAME_BYTES

log = logging.getLogger(__name__)

_MOST_KEPT = 512 << 20
_PATIENCE_S = 3.0


class Peer:
    """A peer as the place of a log, see :class:`~torch_edl.ps_server.durability.log.Place`.

    :meth:`heard` is called with each answer of the master.

    Args:
        folder: folder for a base in transfer; removed with the process.
        is_successor: True if an earlier server of the shard has left a copy, which is taken over.
        most_kept: maximum bytes of unsent records; beyond it, changes are rejected.
        patience_s: seconds without a peer that are not reported as a problem.
    """

    forces = False
    """False: snapshot files are not forced to a disk, since the peer keeps a copy."""
    is_slow = True
    """True: a commit waits for the peer."""

    def __init__(
        self,
        identity: JournalIdentity,
        incarnation: int,
        *,
        token: str,
        folder: Path,
        is_successor: bool = False,
        most_kept: int = _MOST_KEPT,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._peer = PeerConnection(identity, incarnation, token)
        self._condition = self._peer.condition  # guards the fields below
        self.folder = folder
        self._is_successor = is_successor
        self._patience_s = patience_s
        self.damage = Damage()
        """Always empty: the peer checks what it keeps."""
        self._complete = False  # the peer has all except unsent records
        self._note = CopyNote()
        self._incomplete_since = time.monotonic()
        self.needs_base = False
        """True if the peer lacks records that are no longer in memory: it needs a snapshot."""
        self._is_base_made = False
        self._catches_up = False  # the last records that the peer lacks are being sent
        self._alone_until = 0  # newest record acknowledged without a copy
        self._unsent = Unsent(most_kept)
        self._durable = 0
        self._source: PserverStub | None = None  # peer with the predecessor's copy
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

    @property
    def problem(self) -> str:
        """Reason why pushes have not been acknowledged for a while; empty if they are."""
        with self._condition:
            soon = time.monotonic() < self._incomplete_since + self._patience_s
            if self._complete or self._is_alone or soon:
                return ""
            return f"{self._peer.name}: pushes wait, {self._peer.why}"

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
                self._note.peer_is(self._peer.incarnation)

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
            self._catches_up, until = True, self._unsent.newest
        try:
            while last < until:
                with self._condition:
                    batch = self._unsent.batch(last, until)
                last = self._peer.call(stub, Framed(pb.ReplicateRequest(), batch)).message.last
            return self._has(stub, last)
        finally:
            with self._condition:
                self._catches_up = False
                self._condition.notify_all()

    def _has(self, stub: PserverStub, last: int) -> bool:
        """Record the last record of the peer. Returns False if it has changed or lacks records."""
        with self._condition:
            if stub is not self._peer.stub:
                return False
            if last < max(self._unsent.forgotten, self._alone_until):
                self.needs_base = last < self._unsent.forgotten
                return False
            if not self._complete:
                log.info("%s: at %s up to record %d", self._peer.name, stub.address, last)
            self._complete, self.needs_base = True, False
            self._note.copied_to(self._peer.incarnation)
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
                    follows = self._unsent.forgotten <= answer.last <= self._unsent.newest
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

    def take_over(self) -> Base:
        """Exclude earlier servers, and fetch their base from their peer."""
        heard = -1
        while self._is_successor:
            stub, heard = self._peer.after(heard)
            try:
                taken = self._peer.call(stub, pb.TakeReplicaRequest()).message
                if not taken.complete:
                    raise StateLostError(
                        f"{self._peer.name}: its peer at {stub.address} has no complete copy"
                    )
                path = self.folder / "base"
                transfer.fetch(partial(self._peer.call, stub), path, taken.files)
            except (grpc.RpcError, PeerGoneError) as error:
                self._away(stub, error)
                continue
            with self._condition:
                if stub is not self._peer.stub:
                    continue
                self._source = stub
                self._note.inherit(self._peer.incarnation)
            return Base(taken.sequence, path if taken.files else None)
        return Base()

    def read(self, after: int) -> Iterator[Record]:
        """Yield the records after number ``after``, fetched from the peer."""
        heard = -1
        while self._source is not None:
            stub, heard = self._peer.after(heard)
            if stub is not self._source:
                raise StateLostError(f"{self._peer.name}: the server that kept it is gone too")
            try:
                for record in transfer.records_after(partial(self._peer.call, stub), after):
                    after = record.sequence
                    yield record
                return
            except (grpc.RpcError, PeerGoneError) as error:
                self._away(stub, error)

    def begin(self, last: int) -> None:
        """Accept records after number ``last``."""
        with self._condition:
            self._durable = last
            self._unsent.forget(last)
        shutil.rmtree(self.folder / "base", ignore_errors=True)
        self._introducer.start()

    # ---- appending ----

    def write(self, sequence: int, entry: LogEntry) -> None:
        """Keep a record in memory until it is sent; raise UsageError if it exceeds a frame."""
        size = entry.size
        # A successor fetches the record as the last one of a frame.
        if size > MAX_FRAME_BYTES - transfer.PIECE_BYTES - HEAD_BYTES:
            raise UsageError(f"{self._peer.name}: a change of {size} bytes; use more --ps")
        with self._condition:
            if self._peer.end:
                raise StaleIncarnationError(self._peer.end)
            if self._is_alone and not self._is_base_made and self._unsent.is_half_full(size):
                self._unsent.forget(self._unsent.newest)  # the next peer will need a base
            if not self._unsent.has_room(size):
                raise OSError(
                    errno.ENOBUFS, f"{self._peer.name}: no room in memory, {self._peer.why}"
                )
            self._unsent.append(sequence, entry)
            self._condition.notify_all()

    def rotate(self) -> None:
        """Do nothing: the peer drops what its base contains."""

    def holds(self, sequence: int) -> bool:
        """Return whether the record may be acknowledged: the peer has it, or there is no peer."""
        with self._condition:
            if self._is_alone:
                # A base in transfer needs the records after it: slow the workers down.
                if self._catches_up or (self._is_base_made and self._unsent.is_half_full()):
                    return False
                self._alone_until = max(self._alone_until, sequence)
                return True
            # The first acknowledgement waits for a note: with it, a successor looks for the copy.
            return self._note.is_made and self._durable >= sequence

    def commit(self, sequence: int) -> None:
        """Wait until the peer can be called or the record may be acknowledged; send all records."""
        with self._condition:
            self._condition.wait_for(
                lambda: (
                    self._peer.end
                    or self.holds(sequence)
                    or (self._note.is_made and self._complete)
                )
            )
            if self._peer.end:
                raise StaleIncarnationError(self._peer.end)
            stub = self._peer.stub
            batch = self._unsent.batch(self._unsent.forgotten, self._unsent.newest)
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

    def put_base(self, folder: Path, sequence: int) -> Path:
        """Send the files of a folder to the peer, as its new base."""
        try:
            with self._condition:
                stub = self._peer.stub
            if stub is None:
                raise PeerGoneError("there is no peer")
            transfer.send(partial(self._peer.call, stub), folder, sequence)
            if not self._catch_up(stub, sequence):
                raise PeerGoneError("there is another peer")
        except (grpc.RpcError, PeerGoneError) as error:
            if stub is not None:
                self._away(stub, error)
            raise OSError(errno.ENOTCONN, f"{self._peer.name}: {self._peer.why}") from None
        return self.folder / "at-the-peer"

    def drop(self, old: Base, sequence: int, *, whole: bool) -> None:
        """Do nothing: the peer has dropped what its new base contains."""
