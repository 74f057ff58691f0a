"""A folder for the commands of a file of tests, data, and a full disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.place import ROOT, Place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One for all tests of a file, so that they can continue from each other's jobs."""
    return Place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The handwritten digits of scikit-learn as RecordIO: train-*.recordio, test.recordio."""
    folder = tmp_path_factory.mktemp("digits")
    prepare = ROOT / "examples" / "mnist" / "prepare.py"
    subprocess.run([sys.executable, prepare, folder], check=True, capture_output=True)
    return folder


@pytest.fixture
def tiny_disk(place: Place) -> Iterator[Callable[[], Path]]:
    """A folder on a disk of 8 KB."""
    folder = place / "tiny"
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small disk cannot be mounted here: that takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
