"""A model file of torch: its model, optimizer and scheduler, and their engines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch

from torch_edl.config import JobConfig
from torch_edl.data.passes import Pass
from torch_edl.data.task_reader import TaskRecords
from torch_edl.data.task_space import TaskSpace
from torch_edl.errors import ContractError
from torch_edl.interfaces import Batch, Engine
from torch_edl.nn.embedding import Table
from torch_edl.nn.model_tables import check_shared, set_defaults, swap_large, tables_of
from torch_edl.pytorch.batches import Batches
from torch_edl.pytorch.contract import Contract, TorchValues, report_model
from torch_edl.pytorch.datasets import TorchDatasets
from torch_edl.pytorch.replica import Replica
from torch_edl.pytorch.ring.process_group import StoreServer
from torch_edl.pytorch.ring.reducer import ReplicatedTorchModel as ReplicatedModel
from torch_edl.pytorch.servers.served import ServedTorchModel
from torch_edl.pytorch.step import Step, contract_body
from torch_edl.training.user_model import UserModel
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


class ModelFile(UserModel):
    """A model file of torch; see :class:`~torch_edl.training.user_model.UserModel`."""

    values = TorchValues()

    def __init__(self, contract: Contract, config: JobConfig) -> None:
        self.contract = contract
        # Every worker builds the same initial model.
        torch.manual_seed(config.train.seed)
        self.model = contract.make_model()
        self.optimizer = contract.make_optimizer(self.model)
        self.scheduler = contract.make_scheduler(self.optimizer)
        super().__init__(contract, config, TorchDatasets(config.data))

    def report(self) -> pb.ReportModelRequest:
        return report_model(self.model, self.optimizer)

    def apply(self, ready: pb.Start) -> None:
        if ready.torch_threads:
            torch.set_num_threads(ready.torch_threads)
        train = self.config.train
        if ready.strategy != "local" and self.config.trains:
            check_shared(self.model)
        if ready.strategy == "ps":
            # Rows that decay towards zero become denormal numbers, which are many times slower.
            # With other strategies a model computes the same bits as under `python`.
            torch.set_flush_denormal(True)
            swapped = swap_large(
                self.model, train.large_embedding, self.optimizer,
                restored=bool(ready.cluster.restored_from),
            )  # fmt: skip
            for path, table in swapped.items():
                log.info(
                    "%s lives on the servers: %s, rows start as %s",
                    path,
                    table,
                    table.options.begins,
                )
        set_defaults(self.model, train)
        log.info("strategy %s: %s", ready.strategy, ready.reason)

    @cached_property
    def _step(self) -> Step:
        train = self.config.train
        return Step(
            self.contract, self.model, on_nan=train.on_nan, log_layers=train.log_layers,
            apart=self.feeder.generators.apart,
        )  # fmt: skip

    def try_batch(self, batch: Batch) -> float | None:
        tables_of(self.model)
        step = Step(self.contract, self.model, on_nan=self.config.train.on_nan, log_layers="")
        loss = step.loss(batch)
        if loss is None:
            return None
        step.backward(loss, batch)
        return step.last_loss

    def predict(self, features: Any) -> Any:
        return self._step.predict(features)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with torch.no_grad():
            self.model.eval()
            try:
                yield
            finally:
                self.model.train()

    def body(self, engine: Engine) -> Callable[[Batch], float]:
        return contract_body(self._step, engine, self.optimizer, self.scheduler)

    def replica(self) -> Replica:
        stateful = [] if self.scheduler is None else [self.scheduler]
        keep = self.config.checkpoint
        return Replica(self.model, [self.optimizer], stateful, loads_optimizer=keep.load_optimizer)

    def served(self) -> ServedTorchModel:
        return ServedTorchModel(
            self.model, self.optimizer, self.scheduler, forward=self._step.forward,
            steps_at=self.config.minibatches_before,
        )  # fmt: skip

    def replicated(self, host: str) -> tuple[ReplicatedModel, StoreServer]:
        tables = [n for n, m in self.model.named_modules() if isinstance(m, Table)]
        if tables:
            raise ContractError(
                f"{self.contract.path}: {', '.join(tables)}: rows of torch_edl.nn embeddings are "
                "not summed over a ring; use --strategy ps, or torch.nn.Embedding"
            )
        return ReplicatedModel(self.replica()), StoreServer(host)

    def batches(self, records: TaskRecords, data: Pass, space: TaskSpace) -> Batches:
        config = self.config.data
        options = {
            "collate_fn": partial(self.feeder.batch, shard=space.task(0).shard),
            "num_workers": config.loader_workers,
            "pin_memory": config.pin_memory,
        }
        return Batches(records, data, space.pieces, options)
