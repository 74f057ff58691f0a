"""Rendezvous of the members of the next ring, by the master or once by torchrun."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
from typing import Protocol

import grpc

from torch_edl.engine.ring.replicated import MEET_S, MeetingPlace
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

# Longer than the master's long poll of 2 s for a ring, but not much longer: a worker notices only
# between two calls that it must leave.
_CALL_S = 6.0
# Timeout of the report of a span, seconds. The other members wait meanwhile.
_REPORT_S = 2.0
# Time for which a master may be away; a restart takes seconds.
_MASTER_AWAY_S = 600.0
_SAY_S = 10.0  # a wait of this length is logged
_TORCHRUN_MEET_S = 1800.0
_MAX_TRAININGS = 1 << 20
_LAUNCHERS = (
    "processes of one job are started by torchrun or torch-edl run; have srun or mpirun start one "
    "of these on each machine, or unset RANK and WORLD_SIZE to train in one process"
)
# A ring whose members are all cut off from the master may continue for this part of the heartbeat
# timeout. The ring has then stopped before the master declares its members lost and forms another.
_AUTHORITY = 0.8


class RingRendezvous(Protocol):
    """Forms the next ring of this process.

    The default implementations are those of a ring that is formed once, without a master.
    """

    worker_id: int
    """Id of this process in the ``workers`` of a ring."""
    host: str
    """Address of this machine for the other members."""
    meet_s: float
    """Seconds for which members wait for each other to form the ring."""

    def next(self, ring: int, progress: int, *, handing_over: bool = False) -> pb.Ring:
        """Wait for the next ring.

        Args:
            ring: number of the newest ring of this process; 0 for none.
            progress: number that grows with model updates; -1 if the process has no model.
            handing_over: True if this process was asked to leave, but first sends its model.

        Raises:
            DismissedError: no ring will include this process.
        """
        ...

    def worked(self, seconds: float) -> None:
        """Count the time of forward and backward of an update, before the other members are
        waited for."""
        return

    def stand_by(self, ring: int, progress: int) -> pb.Ring | None:
        """Wait after the end of this process's script until the script of rank 0 has ended, too.

        Returns:
            A ring in which this process must send its model to the others before it waits again;
            None if the job is over.

        Raises:
            DismissedError: this process was asked to leave.
        """
        return None

    def awaited(self, ring: int) -> bool:
        """Return True if a process waits for the next ring after ``ring``."""
        return False

    def joined(self, ring: int, records: int) -> None:
        """Record that this process is in the ring, with ``records`` of the pass in its model."""
        return

    @property
    def authorized(self) -> bool:
        """True if the last contact with the master is recent enough to train."""
        return True

    def is_stale(self, ring: int) -> bool:
        """Return True if the ring must be left after this step, to add a process or to leave."""
        return False

    @property
    def leaving(self) -> bool:
        """True if this process was asked to leave."""
        return False

    @property
    def stopping(self) -> bool:
        """True if all processes were asked to leave, because the user stops the job."""
        return False

    def report_span(self, ring: int, pass_index: int, span: pb.TaskStep) -> bool:
        """Report the records that this process begins to read or compute, so that its death counts
        against them. An empty span means that the process is done with the records. Return True if
        later spans of the ring are to be reported."""
        return False

    def may_commit(self) -> bool:
        """Return True if this process may commit a checkpoint: no ring without this process was
        formed since it joined, and none will be formed for some seconds."""
        return True

    def report_checkpoint(self, directory: str) -> bool:
        """Report a committed checkpoint; return True if later restores will use the checkpoint."""
        return True

    def leave(self, ring: int, *, finished: bool) -> None:
        """Record that this process joins no other ring.

        Args:
            finished: True if all work is done.
        """
        return


def local_address(towards: str) -> str:
    """Return the address of this machine that is used to reach the host ``towards``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((towards, 9))  # sends nothing
        return str(probe.getsockname()[0])


def own_host(session: MasterSession) -> str:
    """Return the address of this machine for the other workers of a job."""
    return local_address(session.master.address.rpartition(":")[0])


class MasterRendezvous(RingRendezvous):
    """Rendezvous by the master.

    Args:
        place: address where other members reach this process.
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

    def worked(self, seconds: float) -> None:
        self._status.busy_s += seconds

    def stand_by(self, ring: int, progress: int) -> pb.Ring | None:
        return self._ask(ring, progress, ended=True)

    def _ask(
        self, ring: int, progress: int, *, handing_over: bool = False, ended: bool = False
    ) -> pb.Ring | None:
        self._status.ring = 0
        request = (pb.StandByRequest if ended else pb.JoinRingRequest)(
            worker_id=self.worker_id, ring=ring, store=self._place.address, step=progress
        )
        if isinstance(request, pb.JoinRingRequest):
            request.rank = int(os.environ.get("RANK", "0"))
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
        """Return True if all workers leave and this one may be the last with the model. The next
        ring, possibly of this worker alone, will show it."""
        self._heartbeat.beat()
        return progress >= 0 and self.stopping

    def joined(self, ring: int, records: int) -> None:
        """Report the ring and the position in heartbeats from now on."""
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

    def report_span(self, ring: int, pass_index: int, span: pb.TaskStep) -> bool:
        """Also return False if the master does not answer: later updates then do not wait."""
        request = pb.ReportSpanRequest(
            worker_id=self.worker_id, ring=ring, pass_index=pass_index, span=span
        )
        try:
            return not self._master.call(request, timeout_s=_REPORT_S).enough
        except grpc.RpcError as error:
            log.debug("reporting a span: %s", error.code())
            return False

    def may_commit(self) -> bool:
        """Return True if the master has answered recently and knows this worker.

        As long as the master knows a worker, every ring includes the worker and has a model that
        descends from the worker's model.
        """
        self._heartbeat.beat()
        return self.authorized and not self._heartbeat.lost.is_set()

    def report_checkpoint(self, directory: str) -> bool:
        """Return True if the master accepts the checkpoint; False if the master does not answer."""
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
        """Notify the master, which would otherwise notice later."""
        self._status.ring = 0
        request = pb.LeaveRingRequest(
            worker_id=self.worker_id, finished=finished, training=self._status.training
        )
        try:
            self._master.call(request, timeout_s=5)
        except grpc.RpcError as error:
            log.debug("leaving: %s", error.code())


class TorchrunRendezvous(RingRendezvous):
    """A single ring of all processes that torchrun started together, for each training of a script.

    If one process ends, torchrun's agent ends all others, so there is no second ring. The processes
    that torchrun starts next restore a checkpoint.
    """

    _trainings = itertools.count()

    def __init__(self) -> None:
        env = os.environ
        rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
        if missing := {"MASTER_ADDR", "MASTER_PORT"} - env.keys():
            raise UsageError(
                f"RANK={rank} and WORLD_SIZE={size} are set, {sorted(missing)} not: {_LAUNCHERS}"
            )
        self.worker_id, self._size = rank, size
        self._store = f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        # The store still has keys of the trainings before, and of the processes before a restart.
        restarts = int(env.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._ring = 1 + restarts * _MAX_TRAININGS + next(self._trainings)
        self.host = local_address(env["MASTER_ADDR"])
        # The processes arrive at different times, after the code before the call in the script.
        self.meet_s = _TORCHRUN_MEET_S
        self._met = False

    def next(self, ring: int, progress: int, *, handing_over: bool = False) -> pb.Ring:
        """Return the ring that the environment defines, on the first call.

        Raises:
            JobFailedError: the ring broke, or the torchrun store is unreachable.
        """
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
