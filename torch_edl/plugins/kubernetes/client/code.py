"""Collects the code that is sent to a cluster: the model file and the local modules it imports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch_edl.errors import UsageError
from torch_edl.training.contract import source_files

MAX_BYTES = 900 << 10
"""Maximum size of the code, bytes. A ConfigMap holds 1 MiB, which the configuration shares."""


def collect(model_file: str) -> dict[str, bytes]:
    """Return the content of the files by their paths below the folder of the model file.

    The model file is the first one. Only modules that the source imports by name are found: no data
    files, and no modules that are loaded in another way.

    Raises:
        UsageError: the files are too large to be sent, outside the folder, or unreadable.
    """
    folder = Path(model_file).absolute().parent
    return _collect(model_file, folder, source_files.local_files(model_file))


def collect_module(name: str, file: Path, folder: Path) -> dict[str, bytes]:
    """Return the files of a module of ``-m``, as :func:`collect` does for a model file.

    Args:
        file: source file of the module.
        folder: root folder of the module and of its local imports.

    Raises:
        UsageError: as for :func:`collect`.
    """
    return _collect(f"-m {name}", folder, source_files.module_files(name, file, folder))


def _collect(shown: str, folder: Path, files: Sequence[Path]) -> dict[str, bytes]:
    image = (
        "build them into the image (torch-edl image writes a Dockerfile), and add "
        "--code-in-image PATH"
    )
    found: dict[str, bytes] = {}
    for file in files:
        if not file.is_relative_to(folder):
            raise UsageError(
                f"{file}: is imported, and outside the folder {folder}: modules of other "
                f"folders are not sent; {image}"
            )
        try:
            found[file.relative_to(folder).as_posix()] = file.read_bytes()
        except OSError as error:
            raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    total = sum(map(len, found.values()))
    if total > MAX_BYTES:
        largest = max(found, key=lambda name: len(found[name]))
        raise UsageError(
            f"{shown}: it and the {len(found) - 1} local modules that it imports have "
            f"{total >> 10:,} KiB, the largest is {largest} with {len(found[largest]) >> 10:,} "
            f"KiB; at most {MAX_BYTES >> 10} KiB are sent: {image}"
        )
    return found
