"""A worker's model and what works on it: the user's contract brought to life once per process."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

import torch

from torch_edl.config import JobConfig
from torch_edl.contract import Contract
from torch_edl.data.loader import Bare, Feeder, Prepared
from torch_edl.data.sources import Source, open_source
from torch_edl.data.task_space import Shard
from torch_edl.engine.base import Holder, Strategy, UserCodeError
from torch_edl.engine.local import LocalStrategy
from torch_edl.engine.servers.parameter_server import ParameterServerStrategy
from torch_edl.errors import ContractError, describe_error
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import TaskResult
from torch_edl.nn.model_tables import swap_large
from torch_edl.trainer.task_metrics import TaskMetrics, summarize
from torch_edl.trainer.task_predictions import TaskPredictions
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


class Session:
    """The model, the optimizer and, once the master chose it, the strategy.

    Raises:
        ContractError: the user's functions do not give what they must.
    """

    strategy: Holder

    def __init__(self, contract: Contract, config: JobConfig, worker_id: int) -> None:
        self.contract = contract
        self._config = config
        # Every worker builds the same initial model.
        torch.manual_seed(config.train.seed)
        self.model = contract.make_model()
        self.optimizer = contract.make_optimizer(self.model)
        self._callbacks = contract.make_callbacks()
        contract.make_metrics()
        self._worker_id = worker_id
        self._sources = self._user_sources()
        self.feeder = Feeder(config, contract.feed, self._open_shard if self._sources else None)

    def shards(self) -> list[pb.SourceShard]:
        """What the user's ``data_source`` has, where there is one."""
        return [pb.SourceShard(**asdict(Shard.of(source))) for source in self._sources.values()]

    def start(self, ready: pb.Start) -> None:
        """Sets this process up for training."""
        if ready.torch_threads:
            torch.set_num_threads(ready.torch_threads)
        if ready.strategy == "ps":
            # Rows that decay towards zero become denormal numbers, which are many times slower.
            # Elsewhere a model gives the same bits as under `python`.
            torch.set_flush_denormal(True)
        log.info("strategy %s: %s", ready.strategy, ready.reason)

    def make_strategy(self, name: str, token: str, progress: WorkerStatus) -> Strategy:
        """Builds one of the strategies by which tasks are trained: ``local`` or ``ps``."""
        if name == "local":
            scheduler = self.contract.make_scheduler(self.optimizer)
            return LocalStrategy(
                self.contract,
                self.model,
                self.optimizer,
                scheduler,
                config=self._config,
                progress=progress,
            )
        swapped = swap_large(self.model, self._config.train.large_embedding)
        for path, table in swapped.items():
            log.info(
                "%s lives on the servers: %s, rows start as %s", path, table, table.initializer
            )
        if swapped:
            # Its parameter groups must know the tables instead of the weights that are gone.
            self.optimizer = self.contract.make_optimizer(self.model)
        return ParameterServerStrategy(
            self.contract,
            self.model,
            self.optimizer,
            self.contract.make_scheduler(self.optimizer),
            token=token,
            config=self._config,
            progress=progress,
        )

    def call_back(self, event: str, *args: Any) -> None:
        """Calls a method of each of the user's callbacks that has it.

        Raises:
            ContractError: it raised.
        """
        for callback in self._callbacks:
            method = getattr(callback, event, None)
            if method is None:
                continue
            try:
                method(*args)
            except (Exception, SystemExit) as error:
                raise ContractError(
                    f"{self.contract.path}: callback {type(callback).__name__}.{event} raised "
                    f"{describe_error(error)}"
                ) from error

    def do(self, item: Prepared | Bare) -> TaskResult:
        """Does a task that is not training."""
        if item.lease.kind == pb.TASK_SUMMARIZE:
            return TaskResult(values=summarize(self.contract.make_metrics(), item.lease.states))
        if item.lease.kind == pb.TASK_SNAPSHOT:
            return TaskResult(snapshot=self.strategy.snapshot(item.lease.directory))
        assert isinstance(item, Prepared)
        return self._evaluate(item) if item.lease.kind == pb.TASK_EVALUATE else self._predict(item)

    def _evaluate(self, task: Prepared) -> TaskResult:
        metrics = TaskMetrics(self.contract.loss, self.contract.make_metrics())
        damaged = 0
        with self.strategy.evaluating() as predict:
            for window in task.windows(0):
                damaged += window.damaged
                for batch in window.batches:
                    predictions = predict(batch.features)
                    try:
                        metrics.update(batch, predictions)
                    except (Exception, SystemExit) as error:
                        raise UserCodeError(f"a metric raised {describe_error(error)}") from error
        records = task.lease.end - task.lease.start
        return TaskResult(records=records, metrics=metrics.states(), damaged=damaged)

    def _predict(self, task: Prepared) -> TaskResult:
        predictions = TaskPredictions(self.contract.prediction_outputs_processor, self._worker_id)
        with self.strategy.evaluating() as predict:
            for window in task.windows(0):
                for batch in window.batches:
                    predictions.add(predict(batch.features))
        rows = predictions.write(self._config.checkpoint.output, task.lease.task_id)
        records = task.lease.end - task.lease.start
        if rows != records and self.contract.prediction_outputs_processor is None:
            raise ContractError(
                f"the model made {rows} predictions for {records} records; "
                "feed and model must keep every record in prediction"
            )
        return TaskResult(records=records)

    def _user_sources(self) -> dict[str, Source]:
        if self.contract.data_source is None:
            return {}
        data = self._config.data
        paths = {"train": data.train, "evaluate": data.eval, "predict": data.predict}
        try:
            made = self.contract.data_source(paths[self._config.kind])
        except (Exception, SystemExit) as error:
            raise ContractError(
                f"{self.contract.path}: data_source() raised {describe_error(error)}"
            ) from error
        sources = list(made) if isinstance(made, list | tuple) else [made]
        for source in sources:
            if not isinstance(source, Source):
                raise ContractError(
                    f"{self.contract.path}: data_source returned {type(source).__name__}; "
                    "expected an object (or a list) with name, count, damaged, metadata and "
                    "read(start, end)"
                )
        made_by_name = {source.name: source for source in sources}
        if len(made_by_name) < len(sources):
            names = [source.name for source in sources]
            twice = next(name for name in names if names.count(name) > 1)
            raise ContractError(
                f"{self.contract.path}: data_source returned two sources named {twice!r}; give "
                "each a name of its own"
            )
        return made_by_name

    def _open_shard(self, name: str) -> Source:
        if name in self._sources:
            return self._sources[name]
        # Files of --eval-data beside training data of the user's own.
        data = self._config.data
        return open_source(name, format=data.format, skip_damaged=data.skip_damaged)
