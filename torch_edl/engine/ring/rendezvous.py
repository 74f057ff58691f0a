"""How the members of the next ring find each other: by the master, or once, by torchrun."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Protocol

import grpc

from torch_edl.engine.ring.group import MEET_S, MeetingPlace
from torch_edl.errors import (
    DeclaredLostError,
    DismissedError,
    JobFailedError,
    MasterLostError,
    UsageError,
)
from torch_edl.master_client.session import MasterSession
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

# The master waits two seconds for a ring before it says "ask again". No more than needed: a worker
# that is told to end notices between two calls.
_CALL_S = 6.0
# How long a master may be away; it is started again in seconds.
_MASTER_AWAY_S = 600.0
_SAY_S = 10.0  # silence after which a wait is worth a line
_TORCHRUN_MEET_S = 1800.0
_LAUNCHERS = (
    "processes of one job are started by torchrun or torch-edl run; have srun or mpirun start one "
    "of these on each machine, or unset RANK and WORLD_SIZE to train in one process"
)
# A ring whose members are all cut off from the master may continue for this part of the heartbeat
# timeout: the ring has stopped when the master declares its members lost and forms another.
_AUTHORITY = 0.8


class RingRendezvous(Protocol):
    """Where the members of the next ring find each other.

    What has a default is that of a ring which is formed once, and of which no master knows.
    """

    worker_id: int
    """Of this process, among the ``workers`` of a ring."""
    host: str
    """Address of this machine for the other members."""
    meet_s: float
    """Seconds for which members wait for each other to form the ring."""

    def next(self, ring: int, progress: int, *, handing_over: bool = False) -> pb.Ring:
        """Waits for the next ring.

        Args:
            ring: the newest one that this process was in; 0: none.
            progress: grows with the updates of this process's model; -1: it has no model to give.
            handing_over: it was asked to leave, and gives its model to the others before.

        Raises:
            DismissedError: there is no ring with this process in it.
        """
        ...

    def stand_by(self, ring: int, progress: int) -> pb.Ring | None:
        """The script of this process is over: waits until that of rank 0 is, too.

        Returns:
            A ring in which this process is to give its model to the others, before it stands by
            again; None: the job is over.

        Raises:
            DismissedError: this process was asked to leave before.
        """
        return None

    def awaited(self, ring: int) -> bool:
        """Whether a process waits for the ring after that one."""
        return False

    def joined(self, ring: int, records: int) -> None:
        """This process is in that ring, with a model that has had so many records of the pass."""
        return

    @property
    def authorized(self) -> bool:
        """Whether this process has heard of the master lately enough to train."""
        return True

    def is_stale(self, ring: int) -> bool:
        """Whether the ring is to be left after this step: a process waits, or this one leaves."""
        return False

    @property
    def leaving(self) -> bool:
        """Whether this process was asked to leave."""
        return False

    @property
    def stopping(self) -> bool:
        """Whether all processes were asked to leave, since the user stops the job."""
        return False

    def may_commit(self) -> bool:
        """Whether a checkpoint of this process may be committed now: no ring was formed without
        this process since the process joined, and none will be for some seconds."""
        return True

    def report_checkpoint(self, directory: str) -> bool:
        """A checkpoint is committed; returns whether state is restored from there from now on."""
        return True

    def leave(self, ring: int, *, finished: bool) -> None:
        """This process joins no other ring.

        Args:
            finished: since everything is done.
        """
        return


def local_address(towards: str) -> str:
    """The address of this machine from which packets to the host ``towards`` are sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))  # sends nothing
        return str(probe.getsockname()[0])


def own_host(session: MasterSession) -> str:
    """The address of this machine for the other workers of a job."""
    return local_address(session.master.address.rpartition(":")[0])


class MasterRendezvous(RingRendezvous):
    """The master forms the rings.

    Args:
        place: where other members reach this process.
    """

    def __init__(self, session: MasterSession, place: MeetingPlace) -> None:
        self._master = session.master
        self.worker_id = session.worker_id
        self._heartbeat = session.heartbeat
        self._status = session.progress
        self._authority_s = _AUTHORITY * session.config.cluster.heartbeat_timeout_s
        self.host = own_host(session)
        self.meet_s = MEET_S
        self._place = place

    def next(self, ring: int, progress: int, *, handing_over: bool = False) -> pb.Ring:
        formed = self._ask(ring, progress, handing_over=handing_over)
        if formed is None:
            raise DismissedError("the job continues without this worker, or is over")
        return formed

    def stand_by(self, ring: int, progress: int) -> pb.Ring | None:
        return self._ask(ring, progress, ended=True)

    def _ask(
        self, ring: int, progress: int, *, handing_over: bool = False, ended: bool = False
    ) -> pb.Ring | None:
        self._status.ring = 0
        request = (pb.StandByRequest if ended else pb.JoinRingRequest)(
            worker_id=self.worker_id, ring=ring, store=self._place.address, step=progress
        )
        started, told = time.monotonic(), False

        def check() -> None:
            nonlocal told
            if not told and time.monotonic() - started > _SAY_S:
                told = True
                awaited = "the script of rank 0 to end" if ended else "other workers to form a ring"
                log.info("waiting for %s", awaited)
            self._check_known()
            if self.leaving and not handing_over and not self._must_stay(progress):
                raise DismissedError("asked to leave")

        try:
            answer = self._master.insist(
                request,
                timeout_s=_CALL_S,
                away_s=_MASTER_AWAY_S,
                until=lambda answer: answer.leave or answer.HasField("ring"),
                before_call=check,
            )
        except grpc.RpcError as error:
            raise MasterLostError(f"{error.code().name}: {error.details()}") from None
        if answer.leave:
            self._heartbeat.beat()
            self._check_known()
            return None
        return answer.ring  # type: ignore[no-any-return]

    def _check_known(self) -> None:
        if self._heartbeat.lost.is_set():
            raise DeclaredLostError("the master declared this worker lost")

    def _must_stay(self, progress: int) -> bool:
        """Whether all leave, and this worker may be the last that has the model: the next ring, if
        only of this worker, shows it."""
        self._heartbeat.beat()
        return progress >= 0 and self.stopping

    def joined(self, ring: int, records: int) -> None:
        """Heartbeats name the ring from now on, and the position that goes with it."""
        self._status.position = records
        self._status.ring = ring

    @property
    def authorized(self) -> bool:
        return self._heartbeat.silence_s < self._authority_s

    def is_stale(self, ring: int) -> bool:
        return self._heartbeat.stale_ring >= ring or self.leaving

    def awaited(self, ring: int) -> bool:
        self._heartbeat.beat()
        return self._heartbeat.stale_ring >= ring

    @property
    def leaving(self) -> bool:
        return self._heartbeat.draining.is_set()

    @property
    def stopping(self) -> bool:
        return self._heartbeat.stopping.is_set()

    def may_commit(self) -> bool:
        """Whether the master answers a heartbeat, or did lately, and knows this worker: while the
        master knows a worker, every ring has the worker, and descends from the worker's model."""
        self._heartbeat.beat()
        return self.authorized and not self._heartbeat.lost.is_set()

    def report_checkpoint(self, directory: str) -> bool:
        """Whether the master takes it; a master that does not answer knows an older one."""
        request = pb.ReportCheckpointRequest(worker_id=self.worker_id, directory=directory)
        try:
            answer = self._master.insist(request, timeout_s=_CALL_S)
        except grpc.RpcError as error:
            log.warning(
                "the master was not told of checkpoint %s and does not answer: %s",
                directory, error.code().name,
            )  # fmt: skip
            return False
        return bool(answer.accepted)

    def leave(self, ring: int, *, finished: bool) -> None:
        """Tells the master, which otherwise notices by itself, later."""
        self._status.ring = 0
        request = pb.LeaveRingRequest(worker_id=self.worker_id, finished=finished)
        try:
            self._master.call(request, timeout_s=5)
        except grpc.RpcError as error:
            log.debug("leaving: %s", error.code())


class TorchrunRendezvous(RingRendezvous):
    """One ring of all processes that torchrun started together.

    Torchrun's agent ends all of them when one ends, so there is no second ring; the processes that
    torchrun starts next restore a checkpoint.
    """

    def __init__(self) -> None:
        env = os.environ
        rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
        if missing := {"MASTER_ADDR", "MASTER_PORT"} - env.keys():
            raise UsageError(
                f"RANK={rank} and WORLD_SIZE={size} are set, {sorted(missing)} not: {_LAUNCHERS}"
            )
        self.worker_id, self._size = rank, size
        self._store = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        # Keys of processes before a restart may still be in the store.
        self._ring = 1 + int(env.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.host = local_address(env["MASTER_ADDR"])
        # All processes come by themselves, after whatever the script does first.
        self.meet_s = _TORCHRUN_MEET_S
        self._met = False

    def next(self, ring: int, progress: int, *, handing_over: bool = False) -> pb.Ring:
        """The ring that the environment names, the first time."""
        if self._met:
            raise JobFailedError(
                "the ring broke (see above): a process of this job ended, or could not be "
                "reached; torchrun starts all of them again, under torch-edl run the others "
                "live on"
            )
        self._met = True
        host, _, port = self._store.rpartition(":")
        try:
            # Torchrun's agent listens there before it starts any process.
            socket.create_connection((host, int(port)), timeout=MEET_S).close()
        except OSError as error:
            raise JobFailedError(
                f"nobody answers at MASTER_ADDR:MASTER_PORT={self._store} ({error}): {_LAUNCHERS}"
            ) from None
        return pb.Ring(
            number=self._ring,
            workers=range(self._size),
            store=self._store,
            heal=True,
            fresh=True,
        )
