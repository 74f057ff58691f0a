"""A script's connection to the master of its job."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any

import grpc

from torch_edl.config import JobConfig
from torch_edl.environment import ENV_MASTER, ENV_NODE, ENV_TOKEN
from torch_edl.errors import DismissedError, JobFailedError, MasterLostError, UsageError
from torch_edl.master_client.heartbeat import Heartbeat, WorkerStatus
from torch_edl.processes.child import outlive_terminal
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import AWAY, Stub

log = logging.getLogger(__name__)

_REGISTER_S = 60.0
# The master waits five seconds for servers before it says "ask again".
_REPORT_S = 30.0
# An agent starts a master that was killed again.
_MASTER_AWAY_S = 60.0


class MasterSession:
    """Registers this process as a worker, and says each second that it lives."""

    def __init__(self, master: Stub, registered: pb.RegisterResponse) -> None:
        self.config = JobConfig.from_json(registered.config_json)
        self.worker_id = registered.worker_id
        self.ring = registered.ring
        """The newest ring when this process came; 0: there had been none."""
        self.terminated = threading.Event()
        """Somebody sent SIGTERM."""
        self.progress = WorkerStatus(phase="starting")
        self.cluster = pb.Cluster()
        """The servers of today; none in a ring."""
        self.master = master
        self.heartbeat = Heartbeat(master, self.worker_id, self.progress)
        self.heartbeat.start()
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            # Finish the update, leave the ring, then end by the signal.
            signal.signal(signal.SIGTERM, self._terminate)

    @classmethod
    def connect(cls) -> MasterSession:
        """To the master that the environment names.

        Raises:
            JobFailedError: it does not answer, or wants no worker any more.
        """
        outlive_terminal()
        env = os.environ
        master = Stub(
            pb.DESCRIPTOR.services_by_name["Master"], env[ENV_MASTER], env.get(ENV_TOKEN, "")
        )
        request = pb.RegisterRequest(
            worker_id=-1,
            pid=os.getpid(),
            host=os.uname().nodename,
            node=env.get(ENV_NODE, ""),
            local_rank=int(env.get("LOCAL_RANK", "0")),
        )
        try:
            registered = master.insist("Register", request, timeout_s=_REGISTER_S)
        except grpc.RpcError as error:
            raise JobFailedError(
                f"the master at {env[ENV_MASTER]} did not take this process in: "
                f"{error.details() or error.code().name}; is the job over, or the token another's?"
            ) from None
        return cls(master, registered)

    def report(self, request: pb.ReportModelRequest) -> pb.ReportModelResponse:
        """Tells what the script holds, and waits until the strategy is known and its servers
        are up.

        Raises:
            DismissedError: the job ended meanwhile.
            UsageError: another process told of something else.
        """
        give_up = time.monotonic() + _MASTER_AWAY_S
        while True:
            try:
                answer = self.master.insist("ReportModel", request, timeout_s=_REPORT_S)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                    raise UsageError(error.details()) from None
                if error.code() in AWAY and time.monotonic() < give_up:
                    log.warning("the master does not answer; asking again")
                    continue
                raise MasterLostError(f"{error.code().name}: {error.details()}") from None
            give_up = time.monotonic() + _MASTER_AWAY_S
            if answer.ready:
                self.cluster = answer.cluster
                return answer  # type: ignore[no-any-return]
            if self.heartbeat.draining.is_set() or self.heartbeat.lost.is_set():
                raise DismissedError("the job ended before it began")

    def close(self) -> None:
        """Ends the heartbeat."""
        self.heartbeat.stop()
        self.master.close()

    def _terminate(self, *_: Any) -> None:
        self.terminated.set()
        self.heartbeat.draining.set()
