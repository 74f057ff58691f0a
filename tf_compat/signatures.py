"""Signatures of the functions in a model file of Keras; this module imports no framework."""

from __future__ import annotations

from collections.abc import Mapping

from torch_edl.interfaces import Signature
from torch_edl.training.contract.loading import FOR_ALL

SIGNATURES: Mapping[str, Signature] = {
    "model": Signature(
        "def model(): return keras.Sequential([keras.Input((10,)), keras.layers.Dense(1)])",
        others=("forward", "custom_model", "CustomModel"),
        required=True,
    ),
    "loss": Signature(
        "def loss(labels, predictions): return tf.reduce_mean((labels - predictions) ** 2)",
        2,
        required=True,
    ),
    "optimizer": Signature("def optimizer(): return keras.optimizers.SGD(0.1)", required=True),
    "feed": Signature(
        "def dataset_fn(dataset, mode, metadata): return dataset.map(parse)",
        3,
        others=("dataset_fn",),
        required=True,
    ),
    **FOR_ALL,
}
"""Signatures by the documented names of the functions."""
