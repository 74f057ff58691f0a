"""The counting model of model.py in Keras:

    torch-edl run examples/counting/model_tf.py --ps 2 --workers 2 --data 'data/data-*.parquet' \\
        --output counted
"""

import argparse
import time

import keras
import tensorflow as tf

import tf_compat

parser = argparse.ArgumentParser()
parser.add_argument("--delay", type=float, default=0.0, help="seconds of a minibatch")
parser.add_argument("--quorum", type=int, default=1, help="the --grads-to-wait of --mode sync")
args = parser.parse_args()


class Count(keras.Model):
    def __init__(self):
        super().__init__()
        self.total = self.add_weight(shape=(3,), initializer="zeros", name="total")
        self.rows = tf_compat.Embedding(None, 2, initializer="zeros")

    def call(self, numbers):
        rows = self.rows(numbers)
        time.sleep(args.delay)  # simulates the computation of a larger model
        size = tf.cast(tf.size(numbers), tf.float32)
        return tf.reduce_sum(rows) + tf.reduce_sum(self.total) * size


def forward():
    model = Count()
    model(tf.zeros(1, tf.int64))  # creates the variables
    return model


def loss(labels, predictions):
    return -predictions


def optimizer():
    # In sync mode a server applies the mean of a quorum of pushes, not their sum.
    return keras.optimizers.SGD(float(args.quorum))


def feed(records, mode, metadata):
    numbers = records.column("n").to_numpy()
    return numbers, numbers
