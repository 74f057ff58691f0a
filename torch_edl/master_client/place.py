"""A spare's connection to the master of its job: it waits for the place of a worker."""

from __future__ import annotations

import os

import grpc

from torch_edl.config import JobConfig
from torch_edl.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.errors import DismissedError, MasterLostError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.absence import MASTER_AWAY_S
from torch_edl.wire.channel import Stub

# The master answers after two seconds that no place is free.
_CALL_S = 10.0


class Place:
    """The place of a worker, for which a spare waits at the master that the environment names.

    Args:
        worker_id: of the spare; it is that of the worker later.
    """

    def __init__(self, worker_id: int) -> None:
        self._worker_id = worker_id
        self._master = Stub(services.WORKERS, os.environ[ENV_MASTER], os.environ.get(ENV_TOKEN, ""))

    def config(self) -> JobConfig:
        """The configuration of the job.

        Raises:
            DismissedError: the job ends.
            MasterLostError: the master stays away.
        """
        return JobConfig.from_json(self._ask().config_json)

    def wait(self) -> list[str]:
        """Returns when this process is to register as a worker, or to become a parameter server
        with the arguments that are returned.

        Raises:
            DismissedError: the job ends.
            MasterLostError: the master stays away.
        """
        while True:
            answer = self._ask(warm=True)
            if answer.place or answer.server_args:
                self._master.close()
                return list(answer.server_args)

    def fail(self, error: str, traceback: str) -> None:
        """The model file cannot be loaded: the job continues without this process.

        Raises:
            DismissedError: always, once the master knows.
            MasterLostError: the master stays away.
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
