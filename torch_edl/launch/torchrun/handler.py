"""Rendezvous handler for torch, based on rounds of the master, with a new store in each round."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import logging
import os
import socket
import sys
import threading
import time
import uuid

import grpc
from google.protobuf.message import Message
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from torch_edl.config import ClusterConfig, JobConfig
from torch_edl.config.environment import ENV_NODE, ENV_TOKEN
from torch_edl.errors import EdlError, describe_error
from torch_edl.launch.jobs.master_host import JobMaster, find_or_start
from torch_edl.launch.torchrun import options
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import REFUSED, Stub
from torch_edl.wire.endpoint import LOOPBACK, own_address, split

log = logging.getLogger(__name__)

_LAST_CALL_S = 5.0
_STORE_TIMEOUT = datetime.timedelta(seconds=60)
_CALL_TIMEOUT_S = 10.0
_FAREWELL_S = 2.0
_RETRY_S = 0.2
# Time for which an agent that finds an ended job waits for the master of the next job.
_SUCCESSOR_S = 60.0
# Well below the silence after which the master declares a node lost.
_HEARTBEAT_S = 0.5


class MasterRendezvousHandler(RendezvousHandler):
    """Joins the other agents at the master of the job; starts the master if the endpoint is free.

    ``--rdzv-conf`` accepts ``join_timeout`` and ``last_call_timeout`` in seconds, as for c10d
    (defaults 600 and 5). The run id names the job, the endpoint its master.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._parameters = parameters
        configs = options.unquoted(parameters.config)
        self._join_timeout_s = options.seconds(configs, "join_timeout", options.JOIN_TIMEOUT_S)
        self._last_call_s = options.seconds(configs, "last_call_timeout", _LAST_CALL_S)
        machines = parameters.max_nodes
        self._endpoint = options.endpoint(parameters.endpoint, machines=machines)
        # A pid alone could be that of an earlier agent on this node.
        self._node = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        named = LOOPBACK if machines == 1 else parameters.local_addr
        self._local_addr = named or own_address(self._endpoint)
        self._token = os.environ.get(ENV_TOKEN)
        self._master, self._stub = self._connect()
        self._round = 0
        self._belongs = self._took_part = False
        self._seen = pb.GetRoundResponse()
        self._store: Store | None = None
        self._closed = False
        self._ended = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, name="edl-rendezvous", daemon=True)
        self._heartbeat.start()
        # An agent that is ended by a signal does not call shutdown, so that others may replace it.
        atexit.register(self._leave)

    def get_backend(self) -> str:
        """Return the name of the backend, ``edl``."""
        return "edl"

    @property
    def use_agent_store(self) -> bool:
        """True: workers use the store of the round, with their own prefix."""
        return True

    def get_run_id(self) -> str:
        """Return the value of ``--rdzv-id``."""
        return self._parameters.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and wait until it is complete.

        Raises:
            RendezvousClosedError: the job is over.
            RendezvousTimeoutError: too few nodes joined before the join timeout.
            RendezvousConnectionError: the master rejects this agent.
        """
        self._round = 0  # no heartbeats until the round is complete
        deadline = time.monotonic() + self._join_timeout_s
        while True:
            # The kernel chooses the port, so no process can confuse this store with an earlier one.
            # The socket is bound here, because a TCPStore would listen on all interfaces.
            listener = socket.create_server((self._local_addr, 0))
            server = TCPStore(
                self._local_addr,
                listener.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                timeout=_STORE_TIMEOUT,
                master_listen_fd=listener.detach(),
            )
            address = f"{self._local_addr}:{server.port}"
            place = self._ask_until_ready(address, deadline)
            try:
                return self._enter(place, server)
            except (OSError, RuntimeError) as error:  # includes torch's DistNetworkError
                log.warning("round %d: no store at %s (%s)", place.round, place.store, error)
                if time.monotonic() > deadline:
                    raise RendezvousConnectionError(str(error)) from error

    def num_nodes_waiting(self) -> int:
        """Return the number of nodes that wait for the next round, from the last heartbeat.

        The number is at least 1 if a node of the round was lost or left, or if the round is over
        without this node.
        """
        if self._master.hosted is not None:
            self._master.hosted.revive()  # called here, because torch calls from the main thread
        seen = self._seen
        if self.is_closed():  # there is no next round
            return 0
        return max(1, seen.waiting) if seen.over else seen.waiting

    def is_closed(self) -> bool:
        """Return True if an agent has closed the job."""
        return self._closed or self._seen.closed

    def set_closed(self) -> None:
        """Close the job, so that no agent may join."""
        self._closed = True
        self._tell(pb.CloseRoundsRequest(error=_failure()))

    def shutdown(self) -> bool:
        """Close and leave the job, as torch's other backends do when an agent ends."""
        self.set_closed()
        self._leave()
        return True

    # ---- calls ----

    def _connect(self) -> tuple[JobMaster, Stub]:
        """Find or start the master."""
        port = split(self._endpoint)[1]
        try:
            names = options.job_names(self._parameters.run_id, port)
            job = _job(self._parameters, names[0])
            master = find_or_start(job, endpoint=self._endpoint, follows=False, names=names)
            stub = Stub(services.ROUNDS, master.address, master.token)
        except (EdlError, OSError) as error:
            raise RendezvousConnectionError(f"--rdzv-endpoint {self._endpoint}: {error}") from error
        # torch's agent passes its environment to its workers.
        os.environ.update({**master.environment(), ENV_NODE: self._node})
        return master, stub

    def _reconnect(self) -> None:
        """Connect to the next job, after the job ended before this agent took part."""
        if self._token is None:  # the variable has the token of the ended job
            os.environ.pop(ENV_TOKEN, None)
        self._master.leave()
        self._stub.close()
        self._master, self._stub = self._connect()

    def _ask_until_ready(self, store: str, deadline: float) -> pb.Place:
        request = pb.JoinRoundRequest(
            node=self._node,
            min_nodes=self._parameters.min_nodes,
            max_nodes=self._parameters.max_nodes,
            last_call_s=self._last_call_s,
            store=store,
        )
        problem = "too few nodes"
        patience = time.monotonic() + _SUCCESSOR_S
        while (left_s := deadline - time.monotonic()) > 0:
            hosted = self._master.hosted
            if hosted is not None and (hosted.revive() or hosted.exit) is not None:
                raise self._over(f", its master ended ({hosted.exit})")
            try:
                timeout_s = min(left_s, _CALL_TIMEOUT_S)
                answer = self._stub.call(request, timeout_s=timeout_s)
            except grpc.RpcError as error:
                problem = error.details() or error.code().name.lower()
                if error.code() in REFUSED:
                    raise RendezvousConnectionError(
                        f"the master at {self._stub.address}: {problem}"
                    ) from error
                time.sleep(min(left_s, _RETRY_S))
                if not self._took_part and hosted is None:
                    self._reconnect()
                continue
            if hosted is not None:
                hosted.answered()
            if answer.closed:
                # An agent that waited for a slot, or started the job, does not start another job.
                if self._belongs or hosted is not None or time.monotonic() > patience:
                    raise self._over()
                time.sleep(_RETRY_S)
                self._reconnect()
                continue
            self._belongs = True
            if answer.HasField("place"):
                return answer.place  # type: ignore[no-any-return]
            time.sleep(_RETRY_S)
        self._tell(pb.LeaveRoundRequest(node=self._node))
        raise RendezvousTimeoutError(
            f"{self._parameters.run_id}: no round of {self._parameters.min_nodes} nodes within "
            f"{self._join_timeout_s:.0f} s: {problem}"
        )

    def _over(self, how: str = "") -> RendezvousClosedError:
        self._closed = True
        return RendezvousClosedError(f"{self._parameters.run_id}: the job is over{how}")

    def _enter(self, place: pb.Place, server: TCPStore) -> RendezvousInfo:
        host, port = parse_rendezvous_endpoint(place.store, default_port=0)
        store = server
        if place.rank:
            store = TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT
            )
        self._store = server if place.rank == 0 else None
        self._seen = pb.GetRoundResponse()
        self._round, self._took_part = place.round, True
        return RendezvousInfo(
            PrefixStore(f"torch_edl.launch.torchrun/{place.round}", store),
            place.rank,
            place.nodes,
            RendezvousStoreInfo(master_addr=host, master_port=port),
        )

    def _beat(self) -> None:
        """Send heartbeats, since torch's agent makes no calls while it stops workers."""
        while not self._ended.wait(_HEARTBEAT_S):
            round = self._round
            if not round:
                continue
            request = pb.GetRoundRequest(node=self._node, round=round)
            with contextlib.suppress(grpc.RpcError, ValueError):  # the master is away
                seen = self._stub.call(request, timeout_s=_CALL_TIMEOUT_S)
                if self._master.hosted is not None:
                    self._master.hosted.answered()
                if round == self._round:
                    self._seen = seen

    def _leave(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._heartbeat.join(_FAREWELL_S)
        self._tell(pb.LeaveRoundRequest(node=self._node))
        if self._master.hosted is not None:  # leaves with the last agent and releases the port
            self._master.hosted.wait(_FAREWELL_S)
        self._master.leave()
        self._stub.close()

    def _tell(self, request: Message) -> None:
        try:
            self._stub.call(request, timeout_s=_FAREWELL_S)
        except (grpc.RpcError, ValueError) as error:
            log.info("the master was not told that this agent leaves: %s", error)


def _job(parameters: RendezvousParameters, name: str) -> JobConfig:
    script, per_node = _command_line()
    return JobConfig(
        name=name,
        kind="script",
        model_file=script or name,
        cluster=ClusterConfig(
            min_workers=parameters.min_nodes * per_node,
            max_workers=parameters.max_nodes * per_node,
        ),
    )


def _failure() -> str:
    """Return why torch's agent ends: it closes the rendezvous while an exception is raised."""
    error = sys.exc_info()[1]
    if not isinstance(error, ChildFailedError):
        return describe_error(error) if error is not None else ""
    rank, failure = error.get_first_failure()
    return f"{error.name}: rank {rank} ended with exit code {failure.exitcode}"


def _command_line() -> tuple[str, int]:
    """Return script and workers per node from the command line, which torch does not pass on."""
    launcher = sys.modules.get("torch.distributed.run")
    if launcher is None:
        return "", 1
    try:
        args, _ = launcher.get_args_parser().parse_known_args(sys.argv[1:])
        return os.path.abspath(args.training_script), launcher.determine_local_world_size(
            args.nproc_per_node
        )
    except (SystemExit, ValueError):  # not started by torchrun
        return "", 1
