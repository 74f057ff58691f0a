"""A worker's connection to the master of its job."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from torch_edl.checkpoint import layout
from torch_edl.config import JobConfig, extensions
from torch_edl.config.environment import ENV_MASTER, ENV_NODE, ENV_TOKEN, on_this_machine
from torch_edl.config.parts import training_dir
from torch_edl.errors import (
    DismissedError,
    JobFailedError,
    MasterLostError,
    ServersLostError,
    TrainingOverError,
    UsageError,
)
from torch_edl.master_client.heartbeat import Heartbeat, WorkerStatus
from torch_edl.processes.signals import GracefulExit
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import AWAY, MASTER_AWAY_S, Stub, unanswered

log = logging.getLogger(__name__)

_REGISTER_S = 60.0
_GONE_S = 5.0
_SAY_S = 10.0  # a wait of this length is logged
# Longer than the 5 s for which the master waits for servers.
_CALL_S = 30.0
_FAREWELL_S = 20.0
# Longer than the master's long poll of 2 s.
_RESOLVE_S = 6.0


class MasterSession:
    """Registers this process as a worker at the master that the environment names, and sends a
    heartbeat each second.

    After that, SIGTERM means: finish the update, return the leases, leave; see
    :class:`~torch_edl.processes.signals.GracefulExit`. A handler of the user is kept.

    Args:
        worker_id: id of the worker; -1 to get an id from the master.
        departure: a listening object, for which the caller calls :meth:`begin`; None to create
            one.
        training: number of the training that the script of this process begins, from 1; 0 if the
            process runs no script. The call waits until no process is in the training before.

    Raises:
        JobFailedError: the master does not answer, or rejects the registration.
        UsageError: the script may have no other training.
        TrainingOverError: the other processes have completed the training.
        DismissedError: the script is over.
    """

    def __init__(
        self,
        worker_id: int = -1,
        departure: GracefulExit | None = None,
        *,
        training: int = 0,
    ) -> None:
        env = os.environ
        calls = services.WORKERS + services.TASKS + services.RINGS + services.SERVERS
        calls += services.MEETINGS
        self.master = Stub(calls, env[ENV_MASTER], env.get(ENV_TOKEN, ""))
        request = pb.RegisterRequest(
            worker_id=worker_id,
            pid=os.getpid(),
            host=os.uname().nodename,
            node=env.get(ENV_NODE, ""),
            local_rank=int(env.get("LOCAL_RANK", "0")),
            training=training,
        )
        try:
            registered: pb.RegisterResponse = self.master.insist(
                request,
                timeout_s=_REGISTER_S,
                away_s=MASTER_AWAY_S,
                until=lambda answer: not answer.wait and _is_here(answer, request),
                before_call=_say_if_long(
                    f"waiting until the other processes have completed training {training - 1}. If "
                    "they are in a later training, this process waits until they are lost: it has "
                    "no model of the completed trainings (a checkpoint folder that all machines "
                    "share keeps them)"
                ),
            )
        except grpc.RpcError as error:
            if error.code() in AWAY:
                raise JobFailedError(
                    f"the master at {env[ENV_MASTER]} does not answer: {unanswered(error)}"
                ) from None
            if training > 1 and error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                raise UsageError(error.details()) from None
            raise JobFailedError(
                f"the master at {env[ENV_MASTER]} rejected the registration of this process: "
                f"{error.details() or error.code().name}; is the job over, or the token another's?"
            ) from None
        if registered.leave or registered.trained:
            self.master.close()
            if registered.leave:
                raise DismissedError("the script is over, or the job is stopped")
            results = [(one.passes, one.number, one.value) for one in registered.results]
            raise TrainingOverError(registered.trained, results)
        self.training = training
        """Number of the training of the script; 0 if the process runs none."""
        self.config = on_this_machine(JobConfig.from_json(registered.config_json))
        self.worker_id = registered.worker_id
        self.ring = registered.ring
        """Number of the newest ring at registration; 0 if there was none."""
        # The folder of the job is on the disk of the master's machine, which may not be shared.
        here = registered.models and Path(registered.models).parent.is_dir()
        self.models = str(training_dir(registered.models, training)) if here else ""
        """Folder for the final model of the training, if the script writes no checkpoints; empty if
        this machine does not have the folder of the job."""
        self.progress = WorkerStatus(phase="starting", training=training)
        if self.config.trace:
            tracer = extensions.load(extensions.TRACERS, "opentelemetry", "--trace")
            told = self.config.trace, self.config.name, self.worker_id, self.progress.seconds
            self.progress.seconds = tracer.open(*told)
        self.cluster = pb.Cluster()
        """Current parameter servers; none in a ring."""
        self.heartbeat = Heartbeat(self.master, self.worker_id, self.progress)
        self.heartbeat.start()
        self._model: pb.ReportModelRequest | None = None
        self._fit: Callable[[], None] | None = None
        self.departure = departure or GracefulExit()
        self.master.before_retry = self._require_stay
        if departure is None:
            self.departure.listen()
            self.begin()

    def begin(self) -> None:
        """Allow this process time to finish its work after SIGTERM."""
        self.departure.begin(self.config.cluster.grace_s, self._leave)

    def start(
        self, model: pb.ReportModelRequest, fit: Callable[[], None] | None = None
    ) -> pb.Start:
        """Report the model of this worker, then wait as :meth:`wait_until_ready` does.

        Args:
            fit: runs tasks that fit the preprocessing until none is left; called if there are any.
        """
        self._model, self._fit = model, fit
        return self.wait_until_ready()

    def fit_preprocessing(
        self, spec: str, shards: Sequence[pb.SourceShard], fit: Callable[[], None]
    ) -> bytes:
        """Fit the preprocessing of a script together with all other processes, and return it.

        Args:
            spec: declaration of the preprocessing.
            shards: the records to fit on.
            fit: see :meth:`start`.

        Raises:
            DismissedError: the job ended, or continues without this process.
        """
        request = pb.FitPreprocessingRequest(
            worker_id=self.worker_id, preprocessing=spec, shards=shards
        )
        while True:
            answer = self._ask(request)
            if answer.fitted:
                return answer.fitted  # type: ignore[no-any-return]
            if answer.fit:
                fit()
            self._leave_if_asked(answer)

    def report_data(self, data: pb.ScriptData) -> pb.Start:
        """Report the data that the loader of a script reads, then wait for the servers.

        Raises:
            DismissedError: the job ended, or continues without this process.
            UsageError: another process reported different data.
        """
        self._ask(pb.ReportDataRequest(data=data))
        return self.wait_until_ready()

    def begin_pass(self, number: int, epochs: int) -> bool:
        """Wait until all scripts that were in the previous loop have reached this loop.

        Args:
            number: number of the loop, from 1.
            epochs: number of epochs of this loop and all previous loops.

        Returns:
            True if the other processes have completed this loop.

        Raises:
            DismissedError: the job continues without this process, or is over.
        """
        request = pb.BeginPassRequest(worker_id=self.worker_id, number=number, epochs=epochs)
        while not (answer := self._meeting(request)).begun:
            pass
        return bool(answer.over)

    def meet(
        self,
        passes: int,
        number: int,
        make: Callable[[int, int], bytes],
        merge: Callable[[list[bytes]], str],
    ) -> str:
        """Compute a value with all scripts that are at the same point.

        Args:
            passes: loops over loaders that this script has begun.
            number: number of the value in the newest loop, from 1.
            make: function from (rank, world size) to the part of this process.
            merge: function from the parts, in the order of ranks, to the value as JSON.

        Returns:
            The value as JSON, the same in all processes; ``null`` if the others have passed this
            point.

        Raises:
            DismissedError: the job continues without this process, or is over.
        """
        request = pb.MeetRequest(worker_id=self.worker_id, passes=passes, number=number)
        while not (answer := self._meeting(request)).HasField("result"):
            if answer.HasField("part"):
                part = answer.part
                request.round, request.part = part.round, make(part.rank, part.world)
                request.ClearField("result")
            elif answer.HasField("parts"):
                request.result = merge(list(answer.parts.parts))
                request.ClearField("part")
        return str(answer.result)

    def _meeting(self, request: Message) -> Any:
        answer = self._ask(request)
        self._leave_if_asked(answer)
        return answer

    def _leave_if_asked(self, answer: Any) -> None:
        if answer.leave or self.heartbeat.draining.is_set() or self.heartbeat.lost.is_set():
            raise DismissedError("the job continues without this process, or is over")

    def wait_until_ready(self) -> pb.Start:
        """Wait until the strategy is known and its servers run.

        Raises:
            DismissedError: the job ended, or continues without this process.
        """
        while True:
            # Repeated each time: the master may have been killed before it saved the report.
            if self._model is not None:
                self._ask(self._model)
            answer = self._ask(pb.WaitUntilReadyRequest(worker_id=self.worker_id))
            if answer.HasField("start"):
                self.cluster = answer.start.cluster
                return answer.start  # type: ignore[no-any-return]
            if answer.fit and self._fit is not None:
                self._fit()
            self._leave_if_asked(answer)

    def resolve(self, shard: int, incarnation: int) -> pb.Cluster:
        """Wait some seconds for a later server of a shard, and return the current servers.

        Args:
            incarnation: incarnation of the server that this process knows.

        Returns:
            The current servers; empty if there are none.

        Raises:
            ServersLostError: the master does not answer, or declared this process lost.
        """

        def require_known() -> None:
            if self.heartbeat.lost.is_set():
                raise ServersLostError("the master declared this process lost")

        request = pb.GetClusterRequest(shard=shard, after=incarnation)
        try:
            answer = self.master.insist(
                request, timeout_s=_RESOLVE_S, away_s=MASTER_AWAY_S, before_call=require_known
            )
        except grpc.RpcError as error:
            raise ServersLostError(f"master: {error.code().name}: {error.details()}") from None
        return answer.cluster  # type: ignore[no-any-return]

    def report_failure(
        self, error: str, traceback: str, *, running: bool, untried: bool = False
    ) -> None:
        """Fail the job, because every worker would fail in the same way.

        Args:
            running: True if the error was raised during training, by the user's code or the data.
            untried: True if the user's code has never computed an update in this process.
        """
        request = pb.ReportFailureRequest(
            error=error, traceback=traceback, running=running, untried=untried
        )
        self.master.insist(request, timeout_s=_FAREWELL_S, away_s=_FAREWELL_S)

    def close(self) -> None:
        """End the heartbeat and close the connection."""
        self.departure.close()
        self.heartbeat.stop()
        self.master.close()

    def _ask(self, request: Message) -> Any:
        """Call the master, and repeat the call while the master is away.

        Raises:
            UsageError: the master rejects the content of the request.
            MasterLostError: the master did not come back in time.
        """
        try:
            return self.master.insist(request, timeout_s=_CALL_S, away_s=MASTER_AWAY_S)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                raise UsageError(error.details()) from None
            raise MasterLostError(f"{error.code().name}: {error.details()}") from None

    def _require_stay(self) -> None:
        """Raise DismissedError if this process was asked to leave, and the master has been away for
        longer than a restart takes: it has ended with the job."""
        if self.departure.asked.is_set() and self.heartbeat.silence_s > _GONE_S:
            raise DismissedError("asked to leave, and the master does not answer")

    def _leave(self) -> None:
        self.progress.notice, self.progress.leaving = self.departure.notice, True
        self.heartbeat.draining.set()
        self.heartbeat.beat()  # tells the master to lease no more tasks to this process
        self.heartbeat.on_give_back()  # the update in progress may take long


def _is_here(answer: pb.RegisterResponse, request: pb.RegisterRequest) -> bool:
    """Return False if this machine does not have the checkpoint of a training that is over. The
    request then names the checkpoint as missing, so that the master lets the next call wait."""
    if not answer.trained or layout.is_checkpoint(Path(answer.trained)):
        return True
    request.missing = answer.trained
    log.warning(
        "training %d is over, and this machine does not have its model %s: this process waits, and "
        "the others continue without it; use a checkpoint folder that all machines share",
        request.training,
        answer.trained,
    )
    return False


def _say_if_long(text: str) -> Callable[[], None]:
    """Return a function that logs a text once, when it is called after some seconds."""
    left, began = [text], time.monotonic()

    def check() -> None:
        if left and time.monotonic() - began > _SAY_S:
            log.info("%s", left.pop())

    return check
