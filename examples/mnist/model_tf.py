"""Handwritten digits in Keras: the complete model file of a torch-edl job.

    python examples/mnist/prepare.py digits
    torch-edl run examples/mnist/model_tf.py --data 'digits/train-*.recordio' \\
        --eval-data digits/test.recordio --workers 2 --ps 2 --epochs 20

The layers have the names of the modules in model.py, so both files describe the same model: workers
of both frameworks can train it together, and each reads the checkpoints of the other.
"""

import keras
import tensorflow as tf
from keras import layers

SIDE = 8  # side of an image from prepare.py in pixels; 28 for MNIST


def forward():
    """Return the network, a keras.Model with its variables. Images are (SIDE, SIDE, 1)."""
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu", name="0"),
            layers.MaxPooling2D(SIDE // 8),  # every image is 8x8 from here on
            layers.Conv2D(32, 3, padding="same", activation="relu", name="3"),
            layers.MaxPooling2D(2),
            layers.Permute((3, 1, 2)),  # Channels come first, as in torch.
            layers.Flatten(),
            layers.Dense(10, name="7"),
        ]
    )


def loss(labels, predictions):
    """Return the loss, averaged over the minibatch."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=predictions)
    )


def optimizer():
    """Return a Keras optimizer, which the parameter servers run."""
    return keras.optimizers.Adam(2e-3)


def dataset_fn(dataset, mode, metadata):
    """Convert records to samples. A record is a label byte and the pixels of a square image."""

    def parse(record):
        values = tf.io.decode_raw(record, tf.uint8)
        image = tf.reshape(tf.cast(values[1:], tf.float32) / 255, (SIDE, SIDE, 1))
        if mode == "prediction":
            return image
        return image, tf.cast(values[0], tf.int64)

    return dataset.map(parse)


def eval_metrics_fn():
    """Return the metrics of an evaluation, by name."""
    return {
        "accuracy": lambda labels, predictions: tf.reduce_mean(
            tf.cast(tf.argmax(predictions, 1) == labels, tf.float32)
        )
    }
