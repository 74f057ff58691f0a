"""A spare's connection to the master: the spare waits for the slot of a worker."""

from __future__ import annotations

import os

import grpc

from torch_edl.config import JobConfig
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.errors import DismissedError, MasterLostError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import MASTER_AWAY_S, Stub

# Longer than the master's long poll of 2 s.
_CALL_S = 10.0


class SpareSession:
    """Waits at the master, which the environment names, until a worker slot is free.

    Args:
        worker_id: id of the spare; the worker will have the same id.
    """

    def __init__(self, worker_id: int) -> None:
        self._worker_id = worker_id
        self._master = Stub(services.WORKERS, os.environ[ENV_MASTER], os.environ.get(ENV_TOKEN, ""))

    def config(self) -> JobConfig:
        """Request the configuration of the job.

        Raises:
            DismissedError: the job has no slot for this process, or ends.
            MasterLostError: the master did not come back in time.
        """
        return JobConfig.from_json(self._ask().config_json)

    def wait(self) -> list[str]:
        """Wait until this process must register as a worker or become a parameter server.

        Returns:
            Arguments of the parameter server; empty for a worker.

        Raises:
            DismissedError: the job has no slot for this process, or ends.
            MasterLostError: the master did not come back in time.
        """
        while True:
            answer = self._ask(warm=True)
            if answer.place or answer.server_args:
                self._master.close()
                return list(answer.server_args)

    def fail(self, error: str, traceback: str) -> None:
        """Report that the model file cannot be loaded; the job continues without this process.

        Raises:
            DismissedError: always, after the master has received the report.
            MasterLostError: the master did not come back in time.
        """
        self._ask(error=error, traceback=traceback)

    def _ask(
        self, *, warm: bool = False, error: str = "", traceback: str = ""
    ) -> pb.AwaitPlaceResponse:
        request = pb.AwaitPlaceRequest(
            worker_id=self._worker_id, warm=warm, error=error, traceback=traceback
        )
        try:
            answer: pb.AwaitPlaceResponse = self._master.insist(
                request, timeout_s=_CALL_S, away_s=MASTER_AWAY_S
            )
        except grpc.RpcError as error:
            raise MasterLostError(f"{error.code().name}: {error.details()}") from None
        if answer.leave:
            raise DismissedError("no worker's place will be free")
        return answer
