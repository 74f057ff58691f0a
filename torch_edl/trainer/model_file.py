"""The parts that a model file makes: model, optimizer, scheduler, callbacks, feed and sources."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

import torch

from torch_edl.config import JobConfig
from torch_edl.contract import Contract
from torch_edl.data.feeder import Feeder
from torch_edl.data.task_space import Shard
from torch_edl.errors import ContractError, describe_error
from torch_edl.nn.model_tables import set_defaults, swap_large
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


class ModelFile:
    """What the functions of a model file made, once per process.

    Raises:
        ContractError: the user's functions do not give what they must.
    """

    def __init__(self, contract: Contract, config: JobConfig) -> None:
        self.contract = contract
        self.config = config
        # Every worker builds the same initial model.
        torch.manual_seed(config.train.seed)
        self.model = contract.make_model()
        self.optimizer = contract.make_optimizer(self.model)
        self.scheduler = contract.make_scheduler(self.optimizer)
        self._callbacks = contract.make_callbacks()
        contract.make_metrics()
        data = config.data
        paths = {"train": data.train, "evaluate": data.eval, "predict": data.predict}
        self._sources = contract.make_sources(paths[config.kind])
        self.feeder = Feeder(config, contract.feed, self._sources)

    def shards(self) -> list[pb.SourceShard]:
        """What the user's ``data_source`` has, where there is one."""
        return [pb.SourceShard(**asdict(Shard.of(source))) for source in self._sources.values()]

    def apply(self, ready: pb.Start) -> None:
        """Sets this process up for the strategy that the master chose."""
        if ready.torch_threads:
            torch.set_num_threads(ready.torch_threads)
        train = self.config.train
        if ready.strategy == "ps":
            # Rows that decay towards zero become denormal numbers, which are many times slower.
            # Elsewhere a model gives the same bits as under `python`.
            torch.set_flush_denormal(True)
            swapped = swap_large(self.model, train.large_embedding, self.optimizer)
            for path, table in swapped.items():
                log.info(
                    "%s lives on the servers: %s, rows start as %s", path, table, table.initializer
                )
        set_defaults(self.model, train.max_rows, train.storage_dtype)
        log.info("strategy %s: %s", ready.strategy, ready.reason)

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
