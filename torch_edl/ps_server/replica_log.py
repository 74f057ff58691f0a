"""The owner's side of ``--durability replica``: a change of a shard is acknowledged when a peer
server has it.

The peer is the server of the next shard, as the master says. It has the whole state of this shard,
a base and the records since, or none of it. While no peer has it, changes are made and kept in
memory, and are not acknowledged: the peer of this server may have died, and a new one needs a new
base first. A successor of this server takes base and records over from the peer.
"""

from __future__ import annotations

import errno
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from torch_edl.errors import StaleIncarnationError, StateLostError, UsageError
from torch_edl.ps_server import base_transfer, records
from torch_edl.ps_server.identity import Identity
from torch_edl.ps_server.journal import Base
from torch_edl.ps_server.records import Entry, Record
from torch_edl.ps_server.unsent import Unsent
from torch_edl.wire import cluster_pb2, pserver_pb2, services
from torch_edl.wire import replica_pb2 as pb
from torch_edl.wire.channel import MAX_MESSAGE_BYTES, Stub

log = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 60.0
_MOST_KEPT = 256 << 20
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
        identity: Identity,
        incarnation: int,
        *,
        token: str,
        folder: Path,
        most_kept: int = _MOST_KEPT,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._job = identity.job
        self._owner = pb.ReplicaOwner(
            shard=identity.shard,
            shards=identity.shards,
            model=identity.model,
            incarnation=incarnation,
        )
        self._name = f"replica of shard {identity.shard}"
        self._token = token
        self.folder = folder
        self._patience_s = patience_s
        self.base = Base()
        self.bytes = 0
        """Of all records since the base."""
        self._condition = threading.Condition()  # of the fields below
        self._answers = 0  # of the master
        self._told = False  # the master knows that the state of this shard is kept
        self._peer: cluster_pb2.Server | None = None
        self._stub: Stub | None = None
        self._complete = False  # the peer has the whole state, but for what is kept here
        self._incomplete_since = time.monotonic()
        self._needs_base = False
        self._tried = -1  # the answer of the master after which the peer was tried last
        self._why = "no peer listens yet"
        self._unsent = Unsent(most_kept)
        self._last = 0
        self._durable = 0
        self._covered = 0  # of `bytes`, when the segment was ended
        self._source: Stub | None = None  # the peer of the predecessor
        self._end = ""
        self._commit_lock = threading.Lock()  # held by the thread that sends for all that wait
        self._introducer = threading.Thread(target=self._introduce, name="replica", daemon=True)

    # ---- the peer ----

    def keeper(self) -> int:
        """Incarnation of the peer that has all but what is on its way; 0: none has."""
        with self._condition:
            return self._peer.incarnation if self._peer and self._complete else 0

    def problem(self) -> str:
        """Why pushes have not been acknowledged for a while; empty: they are."""
        with self._condition:
            if self._complete or time.monotonic() < self._incomplete_since + self._patience_s:
                return ""
            return f"{self._name}: pushes wait, {self._why}"

    def waits(self) -> bool:
        """Nothing can be acknowledged before the next answer of the master, or a later one."""
        with self._condition:
            return not (self._told and self._complete)

    def heard(self, peer: cluster_pb2.Server | None, told: bool) -> None:
        """The master answered a heartbeat; ``told``: it knows that a peer keeps the state."""
        with self._condition:
            self._answers += 1
            self._told = self._told or told
            if peer != self._peer:
                if self._stub is not None:
                    self._stub.close()
                self._peer, self._stub = peer, None
                self._incomplete()
                self._why = "no peer listens"
                if peer is not None:
                    self._why = f"the peer at {peer.address} has no complete copy yet"
                    self._stub = Stub(services.REPLICAS, peer.address, self._token, retries=False)
            self._condition.notify_all()

    def _call(self, stub: Stub, request: Any) -> Any:
        """Raises grpc.RpcError; the stub may have been replaced meanwhile."""
        with self._condition:
            if self._peer is None or stub is not self._stub:
                raise _GoneError
            incarnation = self._peer.incarnation
        request.fence.CopyFrom(pserver_pb2.Fence(job=self._job, incarnation=incarnation))
        request.owner.CopyFrom(self._owner)
        try:
            return stub.call(request, timeout_s=_CALL_TIMEOUT_S)
        except ValueError as error:  # the channel was closed before the call began
            if isinstance(error, UsageError):
                raise
            raise _GoneError from None

    def _away(self, stub: Stub, error: Exception) -> None:
        """The peer cannot be used now; it is tried again after the next answer of the master."""
        with self._condition:
            if stub is not self._stub:
                return
            self._incomplete()
            why = error.details() if isinstance(error, grpc.RpcError) else error
            before, self._why = self._why, f"the peer at {stub.address} does not keep it: {why}"
            if self._why != before:
                log.warning("%s: %s", self._name, self._why)
            self._tried = self._answers
            self._condition.notify_all()

    def _incomplete(self) -> None:
        if self._complete:
            self._incomplete_since = time.monotonic()
        self._complete = self._needs_base = False

    def _has(self, stub: Stub, last: int) -> bool:
        """The peer has the whole state up to a record; False if there is another peer by now."""
        with self._condition:
            if stub is not self._stub:
                return False
            if not self._complete:
                log.info("%s: at %s up to record %d", self._name, stub.address, last)
            self._complete, self._needs_base = True, False
            self._unsent.forget(last)
            self._durable = max(self._durable, last)
            self._condition.notify_all()
            return True

    def _introduce(self) -> None:
        """Brings a new peer up to date, as far as records do that."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._end or self._is_strange())
                if self._end:
                    return
                stub = self._stub
                assert stub is not None
                self._tried = self._answers
            try:
                answer = self._call(stub, pb.ReplicateRequest())
                with self._condition:
                    follows = self._unsent.forgotten <= answer.last <= self._last
                    whole = self._unsent.forgotten == 0
                if not (answer.complete and follows):
                    if answer.complete or not whole:
                        with self._condition:
                            self._needs_base = stub is self._stub
                        continue
                    answer = self._call(stub, pb.ReplicateRequest(begin=True))
                self._has(stub, answer.last)
            except (grpc.RpcError, _GoneError) as error:
                self._away(stub, error)

    def _is_strange(self) -> bool:
        known = self._stub is None or self._complete or self._needs_base
        return not known and self._tried < self._answers

    # ---- taking over ----

    def take_over(self) -> None:
        """Fetches the base that the predecessor left at its peer, and keeps earlier servers out.

        Raises:
            StateLostError: the peer does not have it.
            StaleIncarnationError: this server has a successor.
        """
        heard = -1
        while True:
            stub, heard = self._peer_after(heard)
            try:
                taken = self._call(stub, pb.TakeReplicaRequest())
                if not taken.complete:
                    raise StateLostError(
                        f"{self._name}: its peer at {stub.address} has no complete copy"
                    )
                path = self.folder / "base"
                base_transfer.fetch(partial(self._call, stub), path, taken.files)
            except (grpc.RpcError, _GoneError) as error:
                self._away(stub, error)
                continue
            with self._condition:
                self._source = stub
            self.base = Base(taken.sequence, path if taken.files else None)
            self._last = taken.sequence
            return

    def _peer_after(self, heard: int) -> tuple[Stub, int]:
        """The peer that the master names after that many of its answers."""
        with self._condition:
            self._condition.wait_for(lambda: self._end or self._answers > max(heard, 0))
            if self._end:
                raise StaleIncarnationError(self._end)
            if self._stub is None:
                raise StateLostError(f"{self._name}: the server that kept it is gone too")
            return self._stub, self._answers

    def records(self) -> Iterator[Record]:
        """The records since the base, from the peer.

        Raises:
            StateLostError: the peer was lost meanwhile.
        """
        heard = -1
        while self._source is not None:
            stub, heard = self._peer_after(heard)
            if stub is not self._source:
                raise StateLostError(f"{self._name}: the server that kept it is gone too")
            try:
                while content := self._call(stub, pb.FetchReplicaRequest(after=self._last)).content:
                    for record in records.unpack(content):
                        self._last = record.sequence
                        self.bytes += len(record.payload)
                        yield record
                break
            except (grpc.RpcError, _GoneError) as error:
                self._away(stub, error)
        with self._condition:
            self._durable = self._last
            self._unsent.forget(self._last)
            self._told = self._source is not None
        shutil.rmtree(self.folder / "base", ignore_errors=True)
        self._introducer.start()

    # ---- appending ----

    def append(self, entry: Entry) -> int:
        """See :meth:`torch_edl.ps_server.records.Sink.append`."""
        size = len(entry.payload)
        if size > MAX_MESSAGE_BYTES - _BESIDE_RECORDS:
            raise UsageError(f"{self._name}: a change of {size} bytes; use more --ps")
        with self._condition:
            if self._end:
                raise StaleIncarnationError(self._end)
            if not self._unsent.has_room(size):
                raise OSError(errno.ENOBUFS, f"{self._name}: no room in memory, {self._why}")
            self._last += 1
            self._unsent.append(self._last, entry)
            self.bytes += size
            self._condition.notify_all()
            return self._last

    def wait_durable(self, sequence: int) -> None:
        """See :meth:`torch_edl.ps_server.records.Sink.wait_durable`."""
        while not self._is_durable(sequence):
            # One thread sends for all that wait here; the others find it done.
            with self._commit_lock:
                if not self._is_durable(sequence):
                    self._commit(sequence)

    def _is_durable(self, sequence: int) -> bool:
        # Before its first acknowledgement, this server makes sure that the master will look for a
        # copy where a successor is to continue.
        return self._told and self._durable >= sequence

    def _commit(self, sequence: int) -> None:
        with self._condition:
            self._condition.wait_for(
                lambda: self._end or self._is_durable(sequence) or (self._told and self._complete)
            )
            if self._end:
                raise StaleIncarnationError(self._end)
            stub = self._stub
            batch = self._unsent.batch(self._unsent.forgotten, self._last)
        if not batch or stub is None:
            return
        try:
            answer = self._call(stub, pb.ReplicateRequest(records=batch))
        except (grpc.RpcError, _GoneError) as error:
            self._away(stub, error)
            return
        if answer.complete:
            self._has(stub, answer.last)
        else:
            self._away(stub, StateLostError("it has lost its copy"))

    def close(self, reason: str = "this server stops; ask the master for the servers") -> None:
        """What waits is not acknowledged, and appends fail from now on."""
        with self._condition:
            self._end = self._end or reason
            if self._stub is not None:
                self._stub.close()
            self._condition.notify_all()
        if self._introducer.is_alive():
            self._introducer.join()

    # ---- snapshots ----

    forces = False
    """No file of a snapshot is forced to a disk: the peer keeps a copy."""

    @property
    def needs_base(self) -> bool:
        """The peer lacks records that are kept nowhere: it needs a snapshot."""
        return self._needs_base

    def rotate(self) -> int:
        """A snapshot is cut; returns the number of the last record in it."""
        with self._condition:
            self._covered = self.bytes
            return self._last

    def temporary(self) -> Path:
        """A new folder to write a snapshot in."""
        return Path(tempfile.mkdtemp(prefix="snapshot-", dir=self.folder))

    def commit_snapshot(self, temporary: Path, sequence: int, newest: int) -> None:
        """Sends the files of a folder to the peer, as its new base, and removes the folder.

        Args:
            sequence: of the last record that is in the snapshot.
            newest: of the last record that is in a part of the snapshot.

        Raises:
            OSError: there is no peer, or the peer was lost.
        """
        try:
            with self._condition:
                stub = self._stub
            if stub is None:
                raise _GoneError("there is no peer")
            base_transfer.send(partial(self._call, stub), temporary, sequence, newest)
            last = self._send_kept(stub, after=sequence, until=newest)
            if not self._has(stub, last):
                raise _GoneError("there is another peer")
            with self._condition:
                self.base = Base(sequence, self.folder / "at-the-peer")
                self.bytes -= self._covered
                self._covered = 0
        except (grpc.RpcError, _GoneError) as error:
            if stub is not None:
                self._away(stub, error)
            raise OSError(errno.ENOTCONN, f"{self._name}: {self._why}") from None
        finally:
            shutil.rmtree(temporary)

    def _send_kept(self, stub: Stub, after: int, until: int) -> int:
        """Sends what is kept between two records; returns the number of the peer's last one."""
        while True:
            with self._condition:
                batch = self._unsent.batch(after, until)
            after = self._call(stub, pb.ReplicateRequest(records=batch)).last
            if after >= until:
                return after


class _GoneError(Exception):
    """The master named another peer meanwhile."""
