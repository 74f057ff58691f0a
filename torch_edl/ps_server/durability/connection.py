"""What the master says about the copy of a shard: the server that keeps it, with calls to it, and
the note that the copy is complete."""

from __future__ import annotations

import logging
import threading
from typing import Any

import grpc
from google.protobuf.message import Message

from torch_edl.errors import StaleIncarnationError, StateLostError, UsageError
from torch_edl.ps_server.durability.identity import JournalIdentity
from torch_edl.wire import cluster_pb2, pserver_pb2, services
from torch_edl.wire import replica_pb2 as pb
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.pserver_stub import PserverStub

log = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 60.0


class PeerGoneError(Exception):
    """The master has named another peer."""


class PeerConnection:
    """The current peer. Callers hold ``condition``, unless the text of a method says otherwise."""

    def __init__(self, identity: JournalIdentity, incarnation: int, token: str) -> None:
        self._job = identity.job
        self._owner = pb.ReplicaOwner(
            shard=identity.shard,
            shards=identity.shards,
            model=identity.model,
            incarnation=incarnation,
        )
        self._token = token
        self.name = f"replica of shard {identity.shard}"
        """Name for messages."""
        self.condition = threading.Condition()
        """Condition that is notified of each change."""
        self.server: cluster_pb2.Server | None = None
        """Server that the master named last; None if it named none."""
        self.stub: PserverStub | None = None
        """Connection to the server; None if there is none."""
        self.answers = 0
        """Number of answers of the master."""
        self.why = "no peer listens yet"
        """Reason why the peer cannot be used."""
        self.end = ""
        """Reason why no more calls are made; empty while calls are made."""
        self._tried = -1  # `answers` when the peer was last tried

    @property
    def incarnation(self) -> int:
        """Incarnation of the peer; 0 if there is none."""
        return self.server.incarnation if self.server else 0

    def named(self, server: cluster_pb2.Server | None) -> bool:
        """Set the peer that the master names. Returns whether it changed."""
        self.answers += 1
        self.condition.notify_all()
        if server == self.server:
            return False
        if self.stub is not None:
            self.stub.close()
        self.server, self.stub = server, None
        self.why = "no peer listens"
        if server is not None:
            self.why = f"the peer at {server.address} has no complete copy yet"
            self.stub = PserverStub(services.REPLICAS, server, self._token)
        return True

    @property
    def is_fresh(self) -> bool:
        """True if the peer was not tried since the last answer of the master."""
        return self.stub is not None and self._tried < self.answers

    def tried(self) -> None:
        """Record that the peer is being tried."""
        self._tried = self.answers

    def failed(self, stub: PserverStub, error: Exception) -> bool:
        """Record that the peer cannot be used until the next answer of the master. Returns False if
        the peer has changed."""
        if stub is not self.stub:
            return False
        detail = error.details() if isinstance(error, grpc.RpcError) else error
        before, self.why = self.why, f"the peer at {stub.address} does not keep it: {detail}"
        if self.why != before:
            log.warning("%s: %s", self.name, self.why)
        self.tried()
        self.condition.notify_all()
        return True

    def call(self, stub: PserverStub, request: Message | Framed) -> Framed:
        """Call the peer, unless it has changed; called without ``condition``.

        Raises:
            grpc.RpcError: the call failed.
            PeerGoneError: the master has named another peer.
        """
        with self.condition:
            if self.server is None or stub is not self.stub:
                raise PeerGoneError("there is another peer")
            incarnation = self.server.incarnation
        message: Any = request.message if isinstance(request, Framed) else request
        message.fence.CopyFrom(pserver_pb2.Fence(job=self._job, incarnation=incarnation))
        message.owner.CopyFrom(self._owner)
        try:
            return stub.call(request, timeout_s=_CALL_TIMEOUT_S)
        except ValueError as error:  # the channel was closed before the call began
            if isinstance(error, UsageError):
                raise
            raise PeerGoneError("there is another peer") from None

    def after(self, heard: int) -> tuple[PserverStub, int]:
        """Wait for an answer of the master after the first ``heard`` ones. Returns the peer that it
        names, and the number of answers so far; called without ``condition``.

        Raises:
            StateLostError: the master names no peer.
            StaleIncarnationError: no more calls are made.
        """
        with self.condition:
            self.condition.wait_for(lambda: self.end or self.answers > max(heard, 0))
            if self.end:
                raise StaleIncarnationError(self.end)
            if self.stub is None:
                raise StateLostError(f"{self.name}: the server that kept it is gone too")
            return self.stub, self.answers

    def close(self, reason: str) -> None:
        """Make no more calls."""
        self.end = self.end or reason
        if self.stub is not None:
            self.stub.close()
        self.condition.notify_all()


class CopyNote:
    """The newest note and whether the master has stored it. Not thread-safe.

    A server asks the master to store that a peer has a copy of its shard, or that it continues
    without one. When it dies, the master tells a successor to take over the copy, or knows that the
    state is lost. An incomplete copy is thus never taken for the state.

    Notes are numbered, since one may reach the master after a newer one.
    """

    def __init__(self) -> None:
        self.number = 0
        """Number of the newest note; 0 before the first."""
        self.has_copy = False
        """Content of the newest note: whether a peer has a copy."""
        self._noted = 0
        self._at = 0  # incarnation of the last peer with a complete copy; 0: none

    def inherit(self, peer: int) -> None:
        """Adopt the predecessor's note that the peer of that incarnation has a copy."""
        self.number, self.has_copy, self._noted, self._at = 1, True, 1, peer

    def copied_to(self, peer: int) -> None:
        """Note that the peer of that incarnation has a complete copy."""
        self._at = peer
        self._ask(has_copy=True)

    def peer_is(self, incarnation: int) -> None:
        """Note that there is no copy, if another peer had it: a lost server does not return."""
        if self._at not in (0, incarnation):
            self._ask(has_copy=False)

    def _ask(self, has_copy: bool) -> None:
        if has_copy != self.has_copy:
            self.number += 1
            self.has_copy = has_copy

    def answered(self, number: int) -> None:
        """Record that the master has stored the note of that number; 0 for none."""
        self._noted = max(self._noted, number)

    @property
    def is_pending(self) -> bool:
        """True if the master may not have stored the newest note."""
        return self._noted < self.number

    @property
    def is_made(self) -> bool:
        """True if the master has stored a note: it knows that there is state to lose."""
        return self._noted > 0

    @property
    def is_alone(self) -> bool:
        """True if the master has stored the newest note, and the note says that there is no
        copy."""
        return self.is_made and not self.has_copy and not self.is_pending
