"""Write handwritten digits as RecordIO files: several for training, one for testing.

A record is one byte for the label and one byte per pixel (0 is paper, 255 is ink), row by row.
Without ``--idx``, the digits are the 1,797 scans of 8x8 pixels that come with scikit-learn; with
``--idx``, those of the original MNIST files.
"""

from __future__ import annotations

import argparse
import gzip
import struct
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torch_edl.data.sources.files.recordio import RecordIOWriter
from torch_edl.errors import DataError, UsageError

Bytes = npt.NDArray[np.uint8]

SHUFFLE_SEED = 0
TRAIN_FILES = 4
RECORDS_PER_CHUNK = 256


def sklearn_digits() -> tuple[Bytes, Bytes]:
    """Return images (1797, 64) and labels (1797,), both uint8, in a fixed shuffled order.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UsageError(
            "the digits come with scikit-learn, which is not installed: "
            "pip install 'torch-edl[examples]', or name the original files with --idx"
        ) from error
    digits = load_digits()
    # The scans have 17 levels of gray, which are stretched to the range of MNIST.
    images = np.rint(digits.data * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(SHUFFLE_SEED).permutation(len(images))
    return images[order], digits.target.astype(np.uint8)[order]


def read_idx(path: Path) -> Bytes:
    """Return the array of unsigned bytes in a gzip-compressed IDX file, in its own shape.

    Raises:
        DataError: the file is unreadable, is not IDX, or its content does not match its shape.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(str(path), f"not a readable .gz file: {error}") from error
    # Two zero bytes, the type (8: unsigned byte), the number of dimensions; then their sizes.
    dimensions = raw[3] if raw[:3] == b"\0\0\x08" and len(raw) > 3 else 0
    start = 4 + 4 * dimensions
    if not dimensions or len(raw) < start:
        raise DataError(str(path), "not an IDX file of unsigned bytes")
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    values = np.frombuffer(raw, np.uint8, offset=start)
    if values.size != np.prod(shape, dtype=np.int64):
        raise DataError(str(path), f"{values.size} bytes do not fill the shape {shape}")
    return values.reshape(shape)


def write(path: Path, images: Bytes, labels: Bytes) -> None:
    """Write images (n, pixels) and labels (n,) as one RecordIO file."""
    with RecordIOWriter(path, records_per_chunk=RECORDS_PER_CHUNK) as writer:
        for record in np.concatenate([labels[:, None], images], axis=1):
            writer.write(record.tobytes())


def prepare(out: Path, images: Bytes, labels: Bytes, train: int) -> None:
    """Write the first ``train`` digits as ``train-*.recordio``, the others as ``test.recordio``.

    Raises:
        UsageError: the training set or the test set would be empty.
    """
    if not TRAIN_FILES <= train < len(images):
        raise UsageError(
            f"--train {train}: of {len(images)} digits, use {TRAIN_FILES} or more, "
            "and leave some to test on"
        )
    out.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(train), TRAIN_FILES)):
        write(out / f"train-{number}.recordio", images[part], labels[part])
    write(out / "test.recordio", images[train:], labels[train:])


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="folder to write into")
    parser.add_argument(
        "--idx",
        nargs=2,
        type=Path,
        metavar=("IMAGES.gz", "LABELS.gz"),
        help="original MNIST files, in place of the digits of scikit-learn",
    )
    parser.add_argument(
        "--train", type=int, metavar="N", help="digits to train on (default: 80%%, the first ones)"
    )
    options = parser.parse_args(None if arguments is None else list(arguments))
    try:
        if options.idx:
            images, labels = map(read_idx, options.idx)
            if images.ndim != 3 or labels.shape != images.shape[:1]:
                raise UsageError(
                    f"--idx: images of shape {images.shape} and labels of shape {labels.shape} "
                    "do not belong together; name the images first"
                )
            images = images.reshape(len(images), -1)
        else:
            images, labels = sklearn_digits()
        train = len(images) * 4 // 5 if options.train is None else options.train
        prepare(options.out, images, labels, train)
    except (UsageError, OSError) as error:
        sys.stderr.write(f"prepare.py: {error}\n")
        return 2
    sys.stdout.write(f"{train} digits to train and {len(images) - train} to test: {options.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
