r"""DeepFM (Guo et al. 2017) in Keras: model.py beside this file, for workers of TensorFlow.

    python examples/deepfm/generate.py --out data/clicks
    torch-edl run examples/deepfm/model_tf.py --data 'data/clicks/train-*.parquet' \
        --eval-data 'data/clicks/eval-*.parquet' --ps 2 --workers 2 --batch-size 512 --epochs 2

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


class DeepFM(keras.Model):
    """The logit of a click: bias + weights of the ids + pairs of their factors + a deep net."""

    def __init__(self, embedding, dim=16, hidden=(400, 400)):
        super().__init__()
        self.factors = embedding(dim)
        self.weights_of_ids = embedding(1, table="weights")
        self.linear = layers.Dense(1)
        # The indices in the Sequential of model.py, where each ReLU is a module.
        self.deep = keras.Sequential(
            [layers.Dense(size, "relu", name=str(2 * n)) for n, size in enumerate(hidden)]
            + [layers.Dense(1, name=str(2 * len(hidden)))]
        )

    def call(self, inputs):
        """Return logits (n,) for ids int64 (n, 26) and dense float32 (n, 13)."""
        ids, dense = inputs
        factors, weights = self.factors(ids), self.weights_of_ids(ids)
        # The sum of all pairwise products from the square of the sum: 26 products, not 325.
        squares = tf.reduce_sum(tf.square(tf.reduce_sum(factors, 1)), 1)
        pairs = (squares - tf.reduce_sum(tf.square(factors), (1, 2))) / 2
        flat = tf.reshape(factors, (-1, CATEGORICAL * factors.shape[-1]))
        deep = self.deep(tf.concat((flat, dense), 1)) + self.linear(dense)
        return tf.squeeze(deep, 1) + tf.reduce_sum(weights, (1, 2)) + pairs


def _options():
    parser = argparse.ArgumentParser(prog="deepfm")
    parser.add_argument("--dim", type=int, default=8, help="numbers per id")
    parser.add_argument("--hidden", type=int, nargs="*", default=[64], help="layer sizes")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of Adagrad")
    parser.add_argument("--init-std", type=float, default=0.03, help="of a new row")
    return parser.parse_args(sys.argv[1:])


def forward():
    options = _options()
    start = ("normal", {"mean": 0.0, "std": options.init_std})

    def embedding(dim, table="factors"):
        # None: any int64 is an id, so the number of ids need not be known.
        return tf_compat.Embedding(None, dim, table=table, initializer=start)

    model = DeepFM(embedding, options.dim, options.hidden)
    model((tf.zeros((1, CATEGORICAL), tf.int64), tf.zeros((1, DENSE))))  # creates the variables
    return model


def loss(labels, predictions):
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions)
    )


def optimizer():
    # As in torch: the sum of squares begins at 0, and unseen rows do not change.
    return keras.optimizers.Adagrad(_options().lr, initial_accumulator_value=0.0, epsilon=1e-20)


def feed(records, mode, metadata):
    """Return ((ids (n, 26), dense (n, 13)), labels (n,)) of all records of a task.

    For prediction, there are no labels, and the result is (ids, dense).
    """
    inputs = (
        _stacked(records, [f"c{k}" for k in range(CATEGORICAL)], np.int64),
        _stacked(records, [f"d{k}" for k in range(DENSE)], np.float32),
    )
    if mode == "prediction":
        return inputs
    return inputs, records.column("label").to_numpy().astype(np.float32)


def _stacked(records, names, dtype):
    """Return the columns ``names`` as one array (n, len(names)); each column is copied once."""
    out = np.empty((records.num_rows, len(names)), dtype)
    for place, name in enumerate(names):
        out[:, place] = records.column(name).to_numpy()
    return out


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(num_thresholds=2000, from_logits=True)}
