"""The peer's side of ``--durability replica``: keeps base and log of another shard for a successor
of its server. The records are not applied.

The copy is a log in the usual format, in a folder that is removed with the process: in the page
cache, and on the disk when memory is short.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch_edl.errors import StaleIncarnationError, UsageError
from torch_edl.ps_server.durability import records, transfer
from torch_edl.ps_server.durability.disk import Disk
from torch_edl.ps_server.durability.identity import JournalIdentity
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.durability.records import Record
from torch_edl.wire import codec
from torch_edl.wire import replica_pb2 as pb
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.server import Answer, WouldWaitError, in_pool


class ReplicaKeeper:
    """Keeps the replica of the previous shard.

    Args:
        folder: folder that is removed with the process.
        shard: shard of this server.
    """

    def __init__(self, folder: Path, job: str, shard: int, shards: int) -> None:
        self._folder = folder
        self._job = job
        self._shard, self._shards = (shard - 1) % shards, shards
        # Held while a base is put into force, so that a successor takes the old one or the new one.
        self._base_lock = threading.Lock()
        self._lock = threading.Lock()  # guards the fields below; held while a record is appended
        self._writer = 0  # newest known server of the shard
        self._log: ChangeLog | None = None  # None: no complete state
        self._made = 0
        self._reader: tuple[int, Iterator[Record]] = (-1, iter(()))

    def data_answers(self) -> dict[str, Answer]:
        """Return the answers of the data plane by field of a DataRequest."""
        return {
            "replicate": self.replicate,
            "put_base": in_pool(lambda given: Framed(self.put_base(given))),
            "fetch_replica": in_pool(lambda given: self.fetch(given.message)),
        }

    def answers(self) -> dict[str, Callable[[Any], Any]]:
        """Return the answers by name of the method."""
        return {"TakeReplica": self.take}

    def replicate(self, given: Framed, may_wait: bool = True) -> Framed:
        """Append the records of a ReplicateRequest; without records, only report what is there.

        Raises:
            WouldWaitError: another call is being answered, and ``may_wait`` is False.
        """
        request: pb.ReplicateRequest = given.message
        if not self._lock.acquire(blocking=may_wait):
            raise WouldWaitError
        try:
            self._admit(request.owner)
            if self._log is None and request.begin:
                self._log = self._new(request.owner)
            if self._log is None:
                return Framed(pb.ReplicateResponse(complete=False))
            for sequence, entry in records.unpack(given.frames):
                self._log.append_record(sequence, entry)
            last = self._log.last
            return Framed(pb.ReplicateResponse(complete=True, last=last))
        finally:
            self._lock.release()

    def put_base(self, given: Framed) -> pb.PutBaseResponse:
        """Store a piece of a base; the last piece puts the base into force."""
        request: pb.PutBaseRequest = given.message
        with self._lock:
            self._admit(request.owner)
            folder = self._folder / f"base-{request.owner.incarnation}-{request.sequence}"
            log = self._log
            if log is not None and log.base.sequence >= request.sequence > 0:
                return pb.PutBaseResponse()  # received before
            if not folder.exists():
                for other in self._folder.glob("base-*"):
                    shutil.rmtree(other)
                folder.mkdir()
        if request.file:
            if "/" in request.file or request.file.startswith(".") or request.offset < 0:
                raise UsageError(f"file {request.file!r}, offset {request.offset}: not of a base")
            content = codec.frame(given.frames, 1)
            transfer.write(folder / request.file, content, request.offset)
        if not request.files:
            return pb.PutBaseResponse()
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        if sizes != dict(request.files):
            shutil.rmtree(folder)  # the next attempt may send other files
            raise UsageError(f"base: the files {dict(request.files)} were sent, {sizes} came")
        with self._base_lock:
            with self._lock:
                self._admit(request.owner)
                log = self._log or self._new(request.owner)
            # Without the lock: records are appended meanwhile.
            log.commit_snapshot(folder, request.sequence)
            with self._lock:
                self._admit(request.owner)
                self._log = log
        return pb.PutBaseResponse()

    def take(self, request: pb.TakeReplicaRequest) -> pb.TakeReplicaResponse:
        """Assign the replica to a successor."""
        with self._base_lock, self._lock:
            self._require_shard(request.owner)
            self._writer = request.owner.incarnation
            self._reader = (-1, iter(()))  # the previous successor may have appended since
            if self._log is None:
                return pb.TakeReplicaResponse(complete=False)
            base = self._log.base
            files = base.path.iterdir() if base.path else ()
            return pb.TakeReplicaResponse(
                complete=True,
                sequence=base.sequence,
                files={path.name: path.stat().st_size for path in files},
                last=self._log.last,
            )

    def fetch(self, request: pb.FetchReplicaRequest) -> Framed:
        """Return a piece of the replica to the server that has taken it over."""
        with self._lock:
            self._require_shard(request.owner)
            log = self._log
            if request.owner.incarnation != self._writer or log is None:
                raise StaleIncarnationError("the replica was not taken over by this server")
            if not request.file:
                return Framed(pb.FetchReplicaResponse(), self._records(log, request.after))
            base = log.base.path
        if base is None or request.file not in os.listdir(base) or request.offset < 0:
            raise UsageError(f"file {request.file!r}, offset {request.offset}: not of the base")
        content = transfer.read(base / request.file, request.offset)
        return Framed(pb.FetchReplicaResponse(), [memoryview(content)])

    def _records(self, log: ChangeLog, after: int) -> list[memoryview]:
        at, reader = self._reader
        if at != after:
            reader = log.records(after)
        pieces, size = [], 0
        for record in reader:
            pieces.append(record.packed())
            after = record.sequence
            size += len(pieces[-1])
            if size >= transfer.PIECE_BYTES:
                break
        self._reader = (after, reader)
        return [memoryview(b"".join(pieces))]

    def _admit(self, owner: pb.ReplicaOwner) -> None:
        """Raise StaleIncarnationError if a later server has the shard. Drop the replica of an
        earlier server that this one did not take over."""
        self._require_shard(owner)
        if owner.incarnation > self._writer:
            self._drop()
            self._writer = owner.incarnation

    def _require_shard(self, owner: pb.ReplicaOwner) -> None:
        if (owner.shard, owner.shards) != (self._shard, self._shards):
            raise UsageError(
                f"replica of shard {owner.shard} of {owner.shards}: this server keeps that of "
                f"shard {self._shard} of {self._shards}"
            )
        if owner.incarnation < self._writer:
            raise StaleIncarnationError(
                f"shard {owner.shard}: the server of incarnation {self._writer} has taken over "
                f"from that of incarnation {owner.incarnation}, which ends"
            )

    def _new(self, owner: pb.ReplicaOwner) -> ChangeLog:
        identity = JournalIdentity(
            job=self._job, shard=owner.shard, shards=owner.shards, model=owner.model
        )
        self._made += 1
        root = self._folder / f"journal-{self._made}"
        log = ChangeLog(Disk(root, identity, 1, fsync="never"))
        for _ in log.records():
            raise AssertionError("a new log has no records")
        return log

    def _drop(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log = None
        self._reader = (-1, iter(()))
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
