r"""Wide & Deep (Cheng et al. 2016) in Keras: model.py beside this file, for workers of TensorFlow.

    python examples/deepfm/generate.py --out data/clicks
    torch-edl run examples/wide_deep/model_tf.py --data 'data/clicks/train-*.parquet' \
        --eval-data 'data/clicks/eval-*.parquet' --ps 2 --workers 2 --batch-size 512

The parameters have the same names and shapes as in model.py, so the checkpoints are
interchangeable. Arguments after ``--`` are passed to this file: see ``_options``.
"""

from __future__ import annotations

import argparse
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_compat

CATEGORICAL = 26
DENSE = 13
# Pairs of columns whose combinations the wide part memorizes.
CROSSES = [(column, column + 1) for column in range(0, CATEGORICAL, 2)]
BUCKETS = 100_000
"""Number of hash buckets for the combinations of one pair."""


def crosses(ids):
    """Return the crossed features (n, 13) of ids (n, 26). Equal combinations have the same id, and
    pairs of columns have no common ids."""
    first = tf.gather(ids, [a for a, _ in CROSSES], axis=1)
    second = tf.gather(ids, [b for _, b in CROSSES], axis=1)
    # Overflow wraps around, as intended for a hash.
    mixed = (first * 0x9E3779B1 + second) * 0x85EBCA77
    mixed = tf.bitwise.bitwise_xor(tf.bitwise.right_shift(mixed, tf.constant(16, tf.int64)), mixed)
    return tf.math.floormod(mixed, BUCKETS) + tf.range(len(CROSSES), dtype=tf.int64) * BUCKETS


class WideDeep(keras.Model):
    """The logit of a click: weights of ids and crossed ids, plus a deep net on embeddings."""

    def __init__(self, embedding, dim=16, hidden=(400, 400)):
        super().__init__()
        self.embeddings = embedding(dim, "embeddings")
        self.weights_of_ids = embedding(1, "weights")
        self.cross_weights = embedding(1, "cross_weights")
        self.linear = layers.Dense(1)
        # The indices in the Sequential of model.py, where each ReLU is a module.
        self.deep = keras.Sequential(
            [layers.Dense(size, "relu", name=str(2 * n)) for n, size in enumerate(hidden)]
            + [layers.Dense(1, name=str(2 * len(hidden)))]
        )

    def call(self, inputs):
        """Return logits (n,) for ids int64 (n, 26) and dense float32 (n, 13)."""
        ids, dense = inputs
        wide = tf.reduce_sum(self.weights_of_ids(ids), (1, 2))
        wide += tf.reduce_sum(self.cross_weights(crosses(ids)), (1, 2))
        rows = self.embeddings(ids)
        flat = tf.reshape(rows, (-1, CATEGORICAL * rows.shape[-1]))
        return tf.squeeze(self.deep(tf.concat((flat, dense), 1)) + self.linear(dense), 1) + wide


def _options():
    parser = argparse.ArgumentParser(prog="wide_deep")
    parser.add_argument("--dim", type=int, default=8, help="numbers per id")
    parser.add_argument("--hidden", type=int, nargs="*", default=[64], help="layer sizes")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of Adagrad")
    parser.add_argument("--init-std", type=float, default=0.03, help="of a new row")
    return parser.parse_args(sys.argv[1:])


def forward():
    options = _options()
    start = ("normal", {"mean": 0.0, "std": options.init_std})

    def embedding(dim, table):
        return tf_compat.Embedding(None, dim, table=table, initializer=start)

    model = WideDeep(embedding, options.dim, options.hidden)
    model((tf.zeros((1, CATEGORICAL), tf.int64), tf.zeros((1, DENSE))))  # creates the variables
    return model


def loss(labels, predictions):
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions)
    )


def optimizer():
    # As in torch: the sum of squares begins at 0.
    return keras.optimizers.Adagrad(_options().lr, initial_accumulator_value=0.0, epsilon=1e-20)


def feed(records, mode, metadata):
    """Return ((ids (n, 26), dense (n, 13)), labels (n,)) of all records of a task; (ids, dense) for
    prediction."""
    inputs = (
        _stacked(records, [f"c{k}" for k in range(CATEGORICAL)], np.int64),
        _stacked(records, [f"d{k}" for k in range(DENSE)], np.float32),
    )
    if mode == "prediction":
        return inputs
    return inputs, records.column("label").to_numpy().astype(np.float32)


def _stacked(records, names, dtype):
    """Return the columns ``names`` as one array (n, len(names))."""
    out = np.empty((records.num_rows, len(names)), dtype)
    for place, name in enumerate(names):
        out[:, place] = records.column(name).to_numpy()
    return out


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(num_thresholds=2000, from_logits=True)}
