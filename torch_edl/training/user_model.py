"""The interface between a model file of any framework and its worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Protocol

from torch_edl.config import JobConfig
from torch_edl.data.batch import Datasets
from torch_edl.data.feeder import Feeder
from torch_edl.data.passes import Pass, Span
from torch_edl.data.task_reader import TaskRecords
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.engine.replica import ModelReplica
from torch_edl.engine.ring.replicated import MeetingPlace, Replicated
from torch_edl.engine.servers.served import ServedModel
from torch_edl.errors import ContractError, describe_error
from torch_edl.interfaces import Batch, Engine
from torch_edl.training.contract.functions import UserFunctions
from torch_edl.training.task_results import Values
from torch_edl.wire import master_pb2 as pb


class MemberBatches(Protocol):
    """The minibatches of one member, by their position in the data.

    Those of torch are read by a ``DataLoader``, which this package does not import.
    """

    def take(self, span: Span, start: int, rank: int, world: int) -> Any:
        """Return the minibatch at ``span``, which belongs to the update at ``start``. An
        implementation may read ahead for later updates of the same member in the same ring."""
        ...

    def sample(self, *spans: Span) -> Any:
        """Return one minibatch of the records at all ``spans``, read in this process and outside
        the usual order."""
        ...

    def close(self) -> None:
        """Stop the readers."""
        ...


class UserModel(ABC):
    """The model, callbacks and data sources that the functions of a model file have made.

    Raises:
        ContractError: a function of the file raised or returned an invalid value.
    """

    model: Any
    """The model of this process."""
    values: Values
    """Conversion of tensors and metrics of the framework."""

    def __init__(self, contract: UserFunctions, config: JobConfig, datasets: Datasets) -> None:
        self.functions = contract
        """Functions of the model file."""
        self.config = config
        self._callbacks = contract.make_callbacks()
        contract.make_metrics()
        data = config.data
        paths = {"train": data.train, "evaluate": data.eval, "predict": data.predict}
        self._sources = contract.make_sources(paths[config.kind])
        self.feeder = Feeder(
            config, contract.feed, datasets, self._sources, name=contract.named("feed")
        )
        """Conversion of the records of tasks to minibatches."""

    def shards(self) -> list[pb.SourceShard]:
        """Return the shards of the file's ``data_source``; empty without ``data_source``."""
        return [
            pb.SourceShard(**asdict(Shard.counted(source))) for source in self._sources.values()
        ]

    def call_back(self, event: str, *args: Any) -> None:
        """Call a method of all callbacks that have the method.

        Args:
            event: name of the method.

        Raises:
            ContractError: a callback raised.
        """
        for callback in self._callbacks:
            method = getattr(callback, event, None)
            if method is None:
                continue
            try:
                with self.feeder.generators.apart():
                    method(*args)
            except (Exception, SystemExit) as error:
                raise ContractError(
                    f"{self.functions.path}: callback {type(callback).__name__}.{event} raised "
                    f"{describe_error(error)}"
                ) from error

    @abstractmethod
    def report(self) -> pb.ReportModelRequest:
        """Return the description of the model from which the master chooses a strategy."""

    @abstractmethod
    def apply(self, ready: pb.Start) -> None:
        """Set this process up for the strategy that the master has chosen.

        Raises:
            UsageError: the framework does not support the strategy.
        """

    @abstractmethod
    def try_batch(self, batch: Batch) -> float | None:
        """Return the loss of a minibatch after a backward pass that does not change the model; None
        if the loss is not finite.

        Raises:
            UserCodeError: user code raised.
        """

    @abstractmethod
    def predict(self, features: Any) -> Any:
        """Return the output of the model for a minibatch.

        Raises:
            UserCodeError: the model raised.
        """

    @abstractmethod
    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context in which the model evaluates, without gradients and dropout."""

    @abstractmethod
    def body(self, engine: Engine) -> Callable[[Batch], float]:
        """Return the body of the training loop: a function that computes a minibatch and returns
        its loss; NaN if the minibatch gave no gradient.

        Raises (the body):
            UserCodeError: user code raised.
            NanLossError: the loss is not finite, and the job is configured to stop in this case.
        """

    @abstractmethod
    def replica(self) -> ModelReplica:
        """Return the model as this process holds it, for the strategy ``local``."""

    @abstractmethod
    def served(self) -> ServedModel:
        """Return the model as it is trained on parameter servers."""

    @abstractmethod
    def replicated(self, host: str) -> tuple[Replicated, MeetingPlace]:
        """Return the model as a member of a ring trains it, and where the members meet.

        Args:
            host: address of this machine for the other members.

        Raises:
            ContractError: the model has tables.
        """

    @abstractmethod
    def batches(self, records: TaskRecords, data: Pass, space: TaskSpace) -> MemberBatches:
        """Return the minibatches of this member of a ring.

        Args:
            records: records of the training tasks.
            data: partition of the records into updates.
            space: the training tasks.
        """
