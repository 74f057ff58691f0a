"""The worker of a model file: a training script that is built in.

Its loop is the one of scripts; its body is made of the functions of the model file.
"""

from __future__ import annotations

import logging

from torch_edl.data.tasks import TaskPrefetcher
from torch_edl.engine.base import LeasedEngine
from torch_edl.engine.local import LocalEngine
from torch_edl.engine.servers.engine import ServersEngine
from torch_edl.errors import DismissedError
from torch_edl.master_client.heartbeat import Heartbeat, WorkerStatus
from torch_edl.master_client.leases import LeaseClient
from torch_edl.trainer.leased import LeasedUpdates
from torch_edl.trainer.loop import Loop
from torch_edl.trainer.metrics import Meter
from torch_edl.trainer.model_file import ModelFile
from torch_edl.trainer.one_off import OneOffTasks
from torch_edl.trainer.step import ContractBody, Step
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


def run_leased(
    file: ModelFile,
    ready: pb.Start,
    leases: LeaseClient,
    heartbeat: Heartbeat,
    status: WorkerStatus,
    *,
    token: str,
) -> None:
    """Does the tasks of a job until there are none, or this worker is to leave.

    Raises:
        EdlError: the job cannot go on.
    """
    train = file.config.train
    step = Step(file.contract, file.model, on_nan=train.on_nan, log_layers=train.log_layers)
    engine: LeasedEngine
    if ready.strategy == "local":
        engine = LocalEngine(file.model, file.optimizer, file.scheduler, status=status)
    else:
        engine = ServersEngine(
            file.model,
            file.optimizer,
            file.scheduler,
            config=file.config,
            token=token,
            status=status,
            forward=step.forward,
        )
    one_off = OneOffTasks(file, engine, step, leases, status)
    tasks = TaskPrefetcher(leases, file.feeder.prepare)
    source = LeasedUpdates(
        engine,
        tasks,
        leases,
        heartbeat,
        status,
        ready.cluster,
        one_off=one_off,
        call_back=file.call_back,
    )
    loop = Loop(engine, source, Meter())
    body = ContractBody(step, engine, file.optimizer, file.scheduler)
    try:
        tasks.start()
        try:
            for batch in loop:
                try:
                    loop.note(body(batch))
                except (Exception, SystemExit) as error:
                    loop.fail(error)
        except DismissedError as error:
            log.info("leaving: %s", error)
        tasks.stop()
        if not heartbeat.lost.is_set():
            one_off.do_last()
        file.call_back("on_train_end", file.model)
    finally:
        tasks.stop()
        engine.close()
