"""The worker of a model file: a training script that is built in.

Its loop is the one of scripts; its body is made of the functions of the model file.
"""

from __future__ import annotations

import logging
import os

from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.data.tasks import TaskPrefetcher
from torch_edl.engine.base import LeasedEngine
from torch_edl.engine.local import LocalEngine
from torch_edl.engine.replica import Replica
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import MasterRendezvous
from torch_edl.engine.servers.engine import ServersEngine
from torch_edl.environment import ENV_TOKEN
from torch_edl.errors import ContractError, DismissedError
from torch_edl.master_client.leases import LeaseClient
from torch_edl.master_client.session import MasterSession
from torch_edl.nn.embedding import Table
from torch_edl.tables.watermarks import Watermarks
from torch_edl.trainer.leased import LeasedUpdates
from torch_edl.trainer.lockstep import FileUpdates
from torch_edl.trainer.loop import loop, run_body
from torch_edl.trainer.metrics import Meter
from torch_edl.trainer.model_file import ModelFile
from torch_edl.trainer.one_off import OneOffTasks
from torch_edl.trainer.step import Step, contract_body
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


def run(file: ModelFile, master: MasterSession, start: pb.Start) -> None:
    """Does the tasks of a job until there are none, or this worker is to leave.

    Raises:
        EdlError: the job cannot continue.
    """
    train = file.config.train
    leases = LeaseClient(master.master, master.worker_id)
    leases.incarnation = start.cluster.incarnation
    step = Step(file.contract, file.model, on_nan=train.on_nan, log_layers=train.log_layers)
    tasks = TaskPrefetcher(leases, file.feeder.prepare)
    engine: LeasedEngine | RingEngine
    source: LeasedUpdates | FileUpdates
    if start.strategy == "allreduce":
        shards = [Shard(s.name, s.records, s.size, s.mtime_ns) for s in start.shards]
        space = TaskSpace.for_training(shards, file.config)
        engine = _ring_engine(file, master, space)
        one_off = OneOffTasks(file, engine, step, leases, master)
        source = FileUpdates(file, engine, space, tasks, one_off, master)
    else:
        engine = _leased_engine(file, start.strategy, step, master)
        one_off = OneOffTasks(file, engine, step, leases, master)
        source = LeasedUpdates(
            engine, tasks, leases, master, one_off=one_off, call_back=file.call_back
        )
    body = contract_body(step, engine, file.optimizer, file.scheduler)
    dismissed = None
    try:
        tasks.start()
        try:
            run_body(loop(engine, source, Meter()), body)
        except DismissedError as error:
            log.info("leaving: %s", error)
            dismissed = error
        tasks.stop()
        if source.has_last_model(dismissed) and not master.heartbeat.lost.is_set():
            one_off.do_last()
        file.call_back("on_train_end", file.model)
    finally:
        tasks.stop()
        source.close()
        one_off.close()
        engine.close()


def _leased_engine(
    file: ModelFile, strategy: str, step: Step, master: MasterSession
) -> LeasedEngine:
    status = master.progress
    if strategy == "local":
        return LocalEngine(file.model, file.optimizer, file.scheduler, status=status)
    engine = ServersEngine(
        file.model, file.optimizer, file.scheduler, config=file.config,
        token=os.environ[ENV_TOKEN], status=status, resolve=master.resolve, forward=step.forward,
    )  # fmt: skip
    master.heartbeat.on_servers = engine.follow
    return engine


def _ring_engine(file: ModelFile, master: MasterSession, space: TaskSpace) -> RingEngine:
    tables = [n for n, m in file.model.named_modules() if isinstance(m, Table)]
    if tables:
        raise ContractError(
            f"{file.contract.path}: {', '.join(tables)}: rows of torch_edl.nn embeddings are not "
            "summed over a ring; use --strategy ps, or torch.nn.Embedding"
        )

    def watermarks(position: int) -> Watermarks:
        if position >= space.total_records:
            return Watermarks(space.total)
        task, offset = space.at(position)
        return Watermarks(task, {task: offset} if offset else {})

    engine = RingEngine(
        Replica(file.model, [file.optimizer], [] if file.scheduler is None else [file.scheduler]),
        MasterRendezvous(master),
        watermarks=watermarks,
    )
    master.heartbeat.on_broken_ring = engine.membership.interrupt
    return engine
