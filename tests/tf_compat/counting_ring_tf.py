"""As ``tests/faults/counting_ring_model.py``, for workers of TensorFlow, which say what they have
imported."""

import json
import os
import sys
import time
from pathlib import Path

import keras
import tensorflow as tf

RECORDS, GATE, DELAY_S = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])


class Count(keras.Model):
    def __init__(self):
        super().__init__()
        self.records = self.add_weight(shape=(RECORDS,), initializer="zeros", name="records")

    def call(self, numbers):
        time.sleep(0 if GATE.exists() else DELAY_S)
        return tf.gather(self.records, numbers)


class CountAnySize(keras.optimizers.Optimizer):
    """The gradient of a record is 1 / (records of the update), which differ with the ring."""

    def __init__(self):
        super().__init__(learning_rate=1.0)

    def update_step(self, gradient, variable, learning_rate):
        sizes = tf.abs(gradient[gradient != 0])
        if len(sizes):
            variable.assign_sub(tf.round(gradient / tf.reduce_min(sizes)))


def forward():
    model = Count()
    model(tf.zeros(1, tf.int64))  # which makes its variable
    return model


def loss(labels, predictions):
    return -tf.reduce_mean(predictions)


def optimizer():
    return CountAnySize()


def feed(records, mode, metadata):
    numbers = records["n"].to_numpy()
    if RECORDS - 1 in numbers:
        while not GATE.exists():
            time.sleep(0.01)
    return numbers, numbers


class Imported:
    def on_train_end(self, model):
        path = GATE.with_name(f"imported-{os.getpid()}.json")
        path.write_text(json.dumps(sorted(sys.modules)))


def callbacks():
    return [Imported()]
