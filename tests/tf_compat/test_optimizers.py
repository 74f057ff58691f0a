"""The servers' kernels against the optimizers of Keras that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tf_compat.installed import keras, tf
from tf_compat.trained import learning_rates, optimizer_config
from torch_edl.errors import UnsupportedOptimizerError
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import EmbeddingTable, apply_all
from torch_edl.wire import pserver_pb2 as pb

KO = keras.optimizers
DIM, STEPS = 7, 30


@pytest.mark.parametrize(
    "make",
    [
        lambda: KO.SGD(0.1),
        lambda: KO.SGD(0.1, momentum=0.9),
        lambda: KO.SGD(0.1, momentum=0.9, nesterov=True),
        lambda: KO.Adagrad(0.1),
        lambda: KO.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-3),
        lambda: KO.Adam(0.05),
        lambda: KO.Adam(0.05, beta_1=0.7, beta_2=0.8, epsilon=1e-2, amsgrad=True),
        lambda: KO.AdamW(0.05, weight_decay=0.1),
        lambda: KO.RMSprop(0.01),
        lambda: KO.RMSprop(0.01, momentum=0.8, epsilon=1e-2),
        lambda: KO.RMSprop(0.01, centered=True, epsilon=1e-2),
        lambda: KO.RMSprop(0.01, centered=True, momentum=0.5, epsilon=1e-3),
        lambda: KO.Ftrl(0.1),
        lambda: KO.Ftrl(
            0.1,
            l1_regularization_strength=0.05,
            l2_regularization_strength=0.02,
            beta=0.3,
            learning_rate_power=-0.4,
        ),
        lambda: KO.SGD(KO.schedules.ExponentialDecay(0.1, 3, 0.5)),
        lambda: KO.Adam(KO.schedules.CosineDecay(0.1, 20)),
    ],
)
def test_a_kernel_steps_as_keras_does(make: Callable[[], Any]) -> None:
    optimizer = make()
    info = pb.EmbeddingTableInfo(
        name="t", dim=DIM, num_embeddings=1, initializer=pb.Initializer(kind="normal",
        args={"mean": 0.0, "std": 1.0}),
    )  # fmt: skip
    kernels = Optimizers.from_proto(optimizer_config(make()))
    table = EmbeddingTable(info, 3, kernels)
    ids = np.zeros(1, np.int64)
    variable = keras.Variable(table.core.pull(ids))
    optimizer.build([variable])
    random = np.random.default_rng(0)
    for step in range(STEPS):
        gradient = random.normal(size=(1, DIM)).astype(np.float32)
        rates = kernels.rates(list(learning_rates(optimizer, step)))
        optimizer.apply([tf.constant(gradient)], [variable])
        apply_all([(table, ids, gradient)], rates, evict=True)
    row = table.core.pull(ids, read_only=True)
    np.testing.assert_allclose(row, np.asarray(variable), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: KO.Adadelta(),
            "optimizer Adadelta: .* no kernel .* use one of SGD, Adagrad, Adam",
        ),
        (lambda: KO.Lion(), "optimizer Lion"),
        (lambda: KO.SGD(0.1, clipnorm=1.0), r"SGD\(clipnorm\): .* leave it out"),
        (lambda: KO.SGD(0.1, weight_decay=0.1), r"SGD\(weight_decay\)"),
        (lambda: KO.Adam(use_ema=True, global_clipnorm=2.0), r"Adam\(global_clipnorm, use_ema\)"),
        (
            lambda: KO.SGD(KO.schedules.ExponentialDecay(0.1, 3, 0.5), momentum=0.9),
            "momentum with a schedule",
        ),
        (lambda: KO.Ftrl(l2_shrinkage_regularization_strength=0.1), "l2_shrinkage"),
    ],
)
def test_what_has_no_kernel_is_refused_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnsupportedOptimizerError, match=message):
        optimizer_config(make())
