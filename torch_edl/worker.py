"""The worker process: leases tasks and trains, evaluates or predicts on them.

``python -m torch_edl.worker --id I``, started by the master, whose address and token are in the
environment. It registers, loads the model file, tells the master what is in it, and trains as
soon as there are servers. A heartbeat says from the start that it lives.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence

from torch_edl import _core
from torch_edl.config import JobConfig
from torch_edl.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.errors import CheckpointError, JobFailedError, MasterLostError, UsageError
from torch_edl.master_client.heartbeat import Heartbeat, WorkerStatus
from torch_edl.master_client.leases import LeaseClient
from torch_edl.processes.child import follow_parent, setup_logging
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.channel import Stub

log = logging.getLogger(__name__)

_READY_TIMEOUT_S = 600.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one worker until the job is over, it is told to leave, or it cannot go on."""
    parser = argparse.ArgumentParser(prog="torch_edl.worker")
    parser.add_argument("--id", type=int, required=True)
    worker_id = parser.parse_args(argv).id
    follow_parent()
    setup_logging("worker", worker_id)
    _core.tune_malloc()
    master = Stub(
        pb.DESCRIPTOR.services_by_name["Master"], os.environ[ENV_MASTER], os.environ[ENV_TOKEN]
    )
    registered = master.call(
        "Register",
        pb.RegisterRequest(worker_id=worker_id, pid=os.getpid(), host=os.uname().nodename),
        timeout_s=30,
        wait=True,
    )
    config = JobConfig.from_json(registered.config_json)
    progress = WorkerStatus()
    heartbeat = Heartbeat(master, worker_id, progress)
    heartbeat.start()
    # From here on SIGTERM means: finish the minibatch, give back what is held, leave.
    signal.signal(signal.SIGTERM, lambda *_: heartbeat.draining.set())
    try:
        return _work(master, worker_id, config, progress, heartbeat)
    except MasterLostError as error:
        log.error("the master is gone: %s", error)
        return 1
    finally:
        heartbeat.stop()


def _work(
    master: Stub, worker_id: int, config: JobConfig, progress: WorkerStatus, heartbeat: Heartbeat
) -> int:
    # Only now, with the heartbeat running: importing torch takes seconds on a busy machine.
    from torch_edl.contract import load_contract, report_model, user_traceback
    from torch_edl.data.loader import FeedError
    from torch_edl.engine.base import NanLossError, UserCodeError
    from torch_edl.trainer.session import Session
    from torch_edl.trainer.training_loop import TrainingLoop

    try:
        session = Session(load_contract(config.model_file, config.model_args), config, worker_id)
        report = report_model(session.model, session.optimizer, worker_id)
        report.custom_source = session.contract.data_source is not None
        report.shards.extend(session.shards())
        progress.phase = "waiting"
        ready = _wait_until_ready(master, report, heartbeat)
        if ready is None:
            return 0
        session.start(ready)
        leases = LeaseClient(master, worker_id)
        leases.incarnation = ready.cluster.incarnation
        if ready.strategy == "allreduce":
            from torch_edl.trainer.ring_loop import make_ring_loop

            return make_ring_loop(session, ready, master, leases, heartbeat, progress, config).run()
        strategy = session.make_strategy(ready.strategy, os.environ[ENV_TOKEN], progress)
        return TrainingLoop(session, strategy, leases, heartbeat, progress, ready.cluster).run()
    except (UsageError, CheckpointError, UserCodeError, NanLossError, FeedError) as error:
        # Another worker would fail in the same way: the job ends with this.
        report = pb.ReportModelRequest(
            worker_id=worker_id,
            error=str(error),
            traceback=user_traceback(error, config.model_file),
            running=not isinstance(error, UsageError),
        )
        master.call("ReportModel", report, timeout_s=20)
        return 1


def _wait_until_ready(
    master: Stub, report: pb.ReportModelRequest, heartbeat: Heartbeat
) -> pb.ReportModelResponse | None:
    """The answer once servers are up; None if this worker is to leave before that."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline:
        answer = master.call("ReportModel", report, timeout_s=20)
        if answer.ready:
            return answer  # type: ignore[no-any-return]
        if heartbeat.draining.is_set() or heartbeat.lost.is_set():
            return None
    raise JobFailedError(f"the master had no servers ready after {_READY_TIMEOUT_S:.0f} s")


def _end(code: int) -> None:
    """Ends the process, whatever the user's ``feed`` does in the loader's thread."""
    loader = sys.modules.get("torch_edl.data.loader")
    if loader is not None and loader.Loader.is_preparing():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _end(main())
