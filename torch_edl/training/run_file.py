"""The worker of a model file: a built-in training script.

The loop is the same as in scripts; its body calls the functions of the model file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from functools import partial

from torch_edl.config.environment import ENV_TOKEN
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.data.tasks import TaskPrefetcher
from torch_edl.engine.local import LocalEngine
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import MasterRendezvous, own_host
from torch_edl.engine.servers.engine import ServersEngine
from torch_edl.errors import DismissedError, ServersLostError
from torch_edl.interfaces import Batch, LeasedEngine
from torch_edl.master_client.leases import HeldLease, LeaseClient
from torch_edl.master_client.session import MasterSession
from torch_edl.training.leased import LeasedUpdates
from torch_edl.training.lockstep import FileUpdates, watermarks
from torch_edl.training.loop import Meter, loop, run_body
from torch_edl.training.one_off import OneOffTasks
from torch_edl.training.user_model import UserModel
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


def run(file: UserModel, master: MasterSession, start: pb.Start) -> None:
    """Execute the tasks of a job until no task is left, or this worker is asked to leave.

    Args:
        start: the reply of the master that starts this worker.

    Raises:
        EdlError: the job cannot continue.
    """
    leases = LeaseClient(master.master, master.worker_id)
    leases.incarnation = start.cluster.incarnation
    file.feeder.minibatches = lambda: file.config.minibatches(master.progress.version)
    file.feeder.watch = leases.step
    tasks = TaskPrefetcher(leases, file.feeder.prepare)
    master.heartbeat.on_give_back = tasks.give_back
    source: FileUpdates | LeasedUpdates
    engine: RingEngine | LeasedEngine
    if start.strategy == "allreduce":
        shards = [Shard(s.name, s.records, s.size, s.mtime_ns) for s in start.shards]
        space = TaskSpace.for_training(shards, file.config)
        engine = _ring_engine(file, master, space)
        one_off = OneOffTasks(file, engine, leases, master)
        source = FileUpdates(file, engine, space, tasks, one_off, master)
    else:
        engine = _leased_engine(file, start.strategy, master)
        one_off = OneOffTasks(file, engine, leases, master)
        source = LeasedUpdates(
            engine, tasks, leases, master, one_off=one_off, call_back=file.call_back
        )
    compute, dismissed = file.body(engine), None

    def body(batch: Batch) -> float:
        with file.feeder.generators.apart():
            return compute(batch)

    try:
        if start.HasField("trial"):
            # The trial precedes the thread that prepares tasks: feed may not run in two threads.
            with contextlib.suppress(ServersLostError):  # training waits for new servers
                if isinstance(source, LeasedUpdates):
                    source.connect()
                one_off.try_evaluation(HeldLease.from_proto(start.trial), file.feeder.prepare)
        tasks.start()
        try:
            run_body(loop(engine, source, Meter(), master.progress.seconds), body)
        except DismissedError as error:
            log.info("leaving: %s", error)
            dismissed = error
        tasks.stop()
        if source.has_last_model(dismissed) and not master.heartbeat.lost.is_set():
            one_off.do_last()
        if dismissed is None:
            master.heartbeat.beat()
            for end in master.heartbeat.take_epoch_ends():
                file.call_back("on_epoch_end", *end)
        file.call_back("on_train_end", file.model)
    finally:
        tasks.stop()
        source.close()
        one_off.close()
        engine.close()


def _leased_engine(file: UserModel, strategy: str, master: MasterSession) -> LeasedEngine:
    if strategy == "local":
        return LocalEngine(file.replica(), status=master.progress)
    engine = ServersEngine(
        file.served(), config=file.config, token=os.environ[ENV_TOKEN], status=master.progress,
        resolve=master.resolve,
    )  # fmt: skip
    master.heartbeat.on_servers = engine.follow
    return engine


def _ring_engine(file: UserModel, master: MasterSession, space: TaskSpace) -> RingEngine:
    model, meeting = file.replicated(own_host(master))
    engine = RingEngine(
        model, MasterRendezvous(master, meeting), watermarks=partial(watermarks, space)
    )
    master.heartbeat.on_broken_ring = engine.membership.interrupt
    return engine
