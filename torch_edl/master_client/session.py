"""A worker's connection to the master of its job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from torch_edl.config import JobConfig
from torch_edl.environment import ENV_MASTER, ENV_NODE, ENV_TOKEN
from torch_edl.errors import (
    DismissedError,
    JobFailedError,
    MasterLostError,
    ServersLostError,
    UsageError,
)
from torch_edl.master_client.heartbeat import Heartbeat, WorkerStatus
from torch_edl.processes.departure import Departure
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.absence import MASTER_AWAY_S
from torch_edl.wire.channel import AWAY, Stub, unanswered

_REGISTER_S = 60.0
# The master waits five seconds for servers before it says "ask again".
_CALL_S = 30.0
_FAREWELL_S = 20.0
# The master answers after two seconds that nothing has changed.
_RESOLVE_S = 6.0


class MasterSession:
    """Registers this process as a worker at the master that the environment names, and says each
    second that the worker lives.

    SIGTERM means from then on: finish the update, return what is held, leave; see
    :class:`~torch_edl.processes.departure.Departure`. A handler of the user's own stays.

    Args:
        worker_id: -1: the master gives this process a number.
        departure: listens already; the caller begins it.

    Raises:
        JobFailedError: the master does not answer, or wants no worker any more.
    """

    def __init__(self, worker_id: int = -1, departure: Departure | None = None) -> None:
        env = os.environ
        calls = services.WORKERS + services.TASKS + services.RINGS + services.SERVERS
        self.master = Stub(calls, env[ENV_MASTER], env.get(ENV_TOKEN, ""))
        request = pb.RegisterRequest(
            worker_id=worker_id,
            pid=os.getpid(),
            host=os.uname().nodename,
            node=env.get(ENV_NODE, ""),
            local_rank=int(env.get("LOCAL_RANK", "0")),
        )
        try:
            registered: pb.RegisterResponse = self.master.insist(
                request, timeout_s=_REGISTER_S, away_s=MASTER_AWAY_S
            )
        except grpc.RpcError as error:
            if error.code() in AWAY:
                raise JobFailedError(
                    f"the master at {env[ENV_MASTER]} does not answer: {unanswered(error)}"
                ) from None
            raise JobFailedError(
                f"the master at {env[ENV_MASTER]} rejected the registration of this process: "
                f"{error.details() or error.code().name}; is the job over, or the token another's?"
            ) from None
        self.config = JobConfig.from_json(registered.config_json)
        self.worker_id = registered.worker_id
        self.ring = registered.ring
        """The newest ring when this process came; 0: there had been none."""
        self.progress = WorkerStatus(phase="starting")
        self.cluster = pb.Cluster()
        """The servers of today; none in a ring."""
        self.heartbeat = Heartbeat(self.master, self.worker_id, self.progress)
        self.heartbeat.start()
        self._model: pb.ReportModelRequest | None = None
        self._fit: Callable[[], None] | None = None
        self.departure = departure or Departure()
        if departure is None:
            self.departure.listen()
            self.begin()

    def begin(self) -> None:
        """From now on this process has something to finish before it leaves."""
        self.departure.begin(self.config.cluster.grace_s, self._leave)

    def start(
        self, model: pb.ReportModelRequest, fit: Callable[[], None] | None = None
    ) -> pb.Start:
        """Reports what this worker trains, and waits as :meth:`wait_until_ready` does.

        Args:
            fit: does tasks that fit the preprocessing, until none is left; called when there are
                some.
        """
        self._model, self._fit = model, fit
        return self.wait_until_ready()

    def fit_preprocessing(
        self, spec: str, shards: Sequence[pb.SourceShard], fit: Callable[[], None]
    ) -> bytes:
        """Has the preprocessing of a script fitted, by all processes together, and returns it.

        Args:
            spec: its declaration.
            shards: the records that it is fitted by.
            fit: see :meth:`start`.

        Raises:
            DismissedError: the job ended meanwhile, or continues without this process.
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
            if answer.leave or self.heartbeat.draining.is_set() or self.heartbeat.lost.is_set():
                raise DismissedError("the job continues without this process, or is over")

    def report_data(self, data: pb.ScriptData) -> pb.Start:
        """Reports what the loader of a script goes through, and waits for the servers.

        Raises:
            DismissedError: the job ended meanwhile.
            UsageError: another process reported other data.
        """
        self._ask(pb.ReportDataRequest(data=data))
        return self.wait_until_ready()

    def wait_until_ready(self) -> pb.Start:
        """Waits until the strategy is known and its servers are up.

        Raises:
            DismissedError: the job ended meanwhile.
        """
        while True:
            # Each time: the master that heard it may have been killed before it noted it.
            if self._model is not None:
                self._ask(self._model)
            request = pb.WaitUntilReadyRequest(worker_id=self.worker_id)
            answer = self._ask(request)
            if answer.HasField("start"):
                self.cluster = answer.start.cluster
                return answer.start  # type: ignore[no-any-return]
            if answer.fit and self._fit is not None:
                self._fit()
            if answer.leave or self.heartbeat.draining.is_set() or self.heartbeat.lost.is_set():
                raise DismissedError("the job ended before it began")

    def resolve(self, shard: int, incarnation: int) -> pb.Cluster:
        """Waits a while for a later parameter server of a shard, and returns the servers of now; an
        empty cluster: there are none any more.

        Args:
            incarnation: of the server that this process knows.

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

    def report_failure(self, error: str, traceback: str, *, running: bool) -> None:
        """Fails the job, since every worker would fail in the same way.

        Args:
            running: the error came in training, from the user's code or from the data.
        """
        request = pb.ReportFailureRequest(error=error, traceback=traceback, running=running)
        self.master.insist(request, timeout_s=_FAREWELL_S, away_s=_FAREWELL_S)

    def close(self) -> None:
        """Ends the heartbeat."""
        self.departure.close()
        self.heartbeat.stop()
        self.master.close()

    def _ask(self, request: Message) -> Any:
        """Calls, also while the master is away for a while.

        Raises:
            UsageError: the master rejects what was reported.
            MasterLostError: the master stays away.
        """
        try:
            return self.master.insist(request, timeout_s=_CALL_S, away_s=MASTER_AWAY_S)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                raise UsageError(error.details()) from None
            raise MasterLostError(f"{error.code().name}: {error.details()}") from None

    def _leave(self) -> None:
        self.progress.leaving = True
        self.heartbeat.draining.set()
        self.heartbeat.beat()  # no task is leased to this process any more
