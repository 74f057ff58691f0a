"""What the worker of a model file needs of the file, whatever its framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.data.batch import Batch, Datasets
from torch_edl.data.feeder import Feeder
from torch_edl.data.passes import Pass
from torch_edl.data.task_records import TaskRecords
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.engine.base import Engine, LeasedEngine
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import ContractError, describe_error
from torch_edl.master_client.session import MasterSession
from torch_edl.training.contract.functions import UserFunctions
from torch_edl.training.lockstep import MemberBatches
from torch_edl.training.task_results import Values
from torch_edl.wire import master_pb2 as pb


class UserModel(ABC):
    """What the functions of a model file made, once per process.

    Raises:
        ContractError: the user's functions do not give what they must.
    """

    model: Any
    values: Values

    def __init__(self, contract: UserFunctions, config: JobConfig, datasets: Datasets) -> None:
        self.functions = contract
        self.config = config
        self._callbacks = contract.make_callbacks()
        contract.make_metrics()
        data = config.data
        paths = {"train": data.train, "evaluate": data.eval, "predict": data.predict}
        self._sources = contract.make_sources(paths[config.kind])
        self.feeder = Feeder(
            config, contract.feed, datasets, self._sources, name=contract.named("feed")
        )

    def shards(self) -> list[pb.SourceShard]:
        """What the user's ``data_source`` has, where there is one."""
        return [
            pb.SourceShard(**asdict(Shard.counted(source))) for source in self._sources.values()
        ]

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
                    f"{self.functions.path}: callback {type(callback).__name__}.{event} raised "
                    f"{describe_error(error)}"
                ) from error

    @abstractmethod
    def report(self) -> pb.ReportModelRequest:
        """What the master needs to know of the model to choose a strategy."""

    @abstractmethod
    def apply(self, ready: pb.Start) -> None:
        """Sets this process up for the strategy that the master chose.

        Raises:
            UsageError: the framework does not have the strategy.
        """

    @abstractmethod
    def try_batch(self, batch: Batch) -> float | None:
        """The loss of a minibatch, after a backward pass that changes nothing; None: not finite.

        Raises:
            UserCodeError: the user's code raised.
        """

    @abstractmethod
    def predict(self, features: Any) -> Any:
        """What the model says of a minibatch.

        Raises:
            UserCodeError: it raised.
        """

    @abstractmethod
    def evaluating(self) -> AbstractContextManager[None]:
        """Within it the model evaluates: no gradients, no dropout."""

    @abstractmethod
    def body(self, engine: Engine) -> Callable[[Batch], float]:
        """What stands between two batches: computes a minibatch and returns its loss. NaN: the
        minibatch gave no gradient.

        Raises (the body):
            UserCodeError: the user's code raised.
            NanLossError: the loss is not finite, and the user wants to stop then.
        """

    @abstractmethod
    def leased_engine(self, strategy: str, master: MasterSession) -> LeasedEngine:
        """The engine of the strategies ``local`` and ``ps``."""

    @abstractmethod
    def ring_engine(self, master: MasterSession, space: TaskSpace) -> RingEngine:
        """The engine of the strategy ``allreduce``.

        Args:
            space: the training tasks, in whose order the records are.

        Raises:
            ContractError: the model has tables.
        """

    @abstractmethod
    def batches(self, records: TaskRecords, data: Pass, space: TaskSpace) -> MemberBatches:
        """The minibatches of a member of a ring.

        Args:
            records: of the training tasks.
            data: how the records are cut into updates.
        """
