"""A Keras model file: its model, its optimizer, and the engines that train them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import keras
import tensorflow as tf

from tf_compat.collectives.stream_listener import StreamListener
from tf_compat.contract import KerasContract, TensorFlowValues
from tf_compat.datasets import TensorFlowDatasets
from tf_compat.embedding import set_defaults, swap_large, tables_of
from tf_compat.names import layers
from tf_compat.replica import KerasReplica
from tf_compat.ring import ReplicatedKerasModel as ReplicatedModel
from tf_compat.ring import TaskBatches
from tf_compat.rows import TableLayer
from tf_compat.servers import ServedKerasModel
from tf_compat.step import KerasStep, body
from tf_compat.trained import TrainedModel, optimizer_config
from torch_edl.config import JobConfig
from torch_edl.config.environment import ENV_TOKEN
from torch_edl.data.passes import Pass
from torch_edl.data.task_reader import TaskRecords
from torch_edl.data.task_space import TaskSpace
from torch_edl.errors import ContractError, UnsupportedOptimizerError
from torch_edl.interfaces import Batch, Engine
from torch_edl.training.user_model import UserModel
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


def _limit_threads(config: JobConfig) -> None:
    """Limit the threads of TensorFlow, which is possible only before the first operation."""
    cluster = config.cluster
    cores = len(os.sched_getaffinity(0)) // cluster.max_workers
    try:
        tf.config.threading.set_intra_op_parallelism_threads(
            cluster.worker_threads or max(1, cores)
        )
    except RuntimeError:
        log.info("the model file has computed while it was loaded: its threads are not limited")


class KerasModelFile(UserModel):
    """Implements :class:`~torch_edl.training.user_model.UserModel`."""

    values = TensorFlowValues()

    def __init__(self, contract: KerasContract, config: JobConfig) -> None:
        self.contract = contract
        _limit_threads(config)
        # All workers must build the same initial model.
        keras.utils.set_random_seed(config.train.seed)
        self.model = contract.make_model()
        self.optimizer = contract.make_optimizer()
        tables_of(self.model)
        super().__init__(contract, config, TensorFlowDatasets(config.data.batch_size))

    def report(self) -> pb.ReportModelRequest:
        report = pb.ReportModelRequest(
            optimizer=type(self.optimizer).__name__,
            dense_elements=sum(int(tf.size(v)) for v in self.model.trainable_variables),
        )
        try:
            optimizer_config(self.optimizer)
        except UnsupportedOptimizerError as error:
            report.optimizer_error = str(error)
        for path, layer in layers(self.model):
            if isinstance(layer, TableLayer):
                report.embeddings.add(
                    name=path, num_embeddings=layer.options.bound or 0, dim=layer.dim, dynamic=True
                )
            elif isinstance(layer, keras.layers.Embedding):
                report.embeddings.add(
                    name=path, num_embeddings=layer.input_dim, dim=layer.output_dim
                )
        return report

    def apply(self, ready: pb.Start) -> None:
        train = self.config.train
        if ready.strategy == "ps":
            restored = bool(ready.cluster.restored_from)
            for path in swap_large(self.model, train.large_embedding, restored=restored):
                log.info("%s lives on the servers", path)
        set_defaults(self.model, train)
        log.info("strategy %s: %s", ready.strategy, ready.reason)

    @cached_property
    def _trained(self) -> TrainedModel:
        return TrainedModel(self.model, self.optimizer)

    @cached_property
    def _step(self) -> KerasStep:
        train = self.config.train
        return KerasStep(
            self.contract, self._trained, on_nan=train.on_nan, compiled=train.tf_function,
            log_layers=train.log_layers, apart=self.feeder.generators.apart,
        )  # fmt: skip

    def try_batch(self, batch: Batch) -> float | None:
        made = self._step.loss(batch)
        if made is None:
            return None
        loss, backward = made
        backward()
        return loss

    def predict(self, features: Any) -> Any:
        return self._step.predict(features)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self._trained.set_training(False)
        try:
            yield
        finally:
            self._trained.set_training(True)

    def body(self, engine: Engine) -> Callable[[Batch], float]:
        return body(self._step, engine, self._trained)

    def replica(self) -> KerasReplica:
        return KerasReplica(self._trained, self.config.train.seed)

    def served(self) -> ServedKerasModel:
        steps_at = self.config.minibatches_before
        return ServedKerasModel(self._trained, self._step.call, steps_at=steps_at)

    def replicated(self, host: str) -> tuple[ReplicatedModel, StreamListener]:
        trained = self._trained
        if trained.tables:
            raise ContractError(
                f"{self.contract.path}: {', '.join(layer.table for layer in trained.tables)}: rows "
                "of tf_compat embeddings are not summed over a ring; use --strategy ps, or "
                "keras.layers.Embedding"
            )
        meeting = StreamListener(host, os.environ[ENV_TOKEN])
        return ReplicatedModel(trained, self.replica(), meeting), meeting

    def batches(self, records: TaskRecords, data: Pass, space: TaskSpace) -> TaskBatches:
        make = partial(self.feeder.batch, shard=space.task(0).shard)
        return TaskBatches(records, data, space, make, self.feeder.cut)
