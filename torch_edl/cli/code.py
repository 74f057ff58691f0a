"""The code of a job that travels to a cluster: the model file and the local modules it imports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch_edl.errors import UsageError
from torch_edl.training.contract import source_files

MAX_BYTES = 900 << 10
"""A ConfigMap holds 1 MiB; the configuration of the job needs the rest."""


def collect(model_file: str) -> dict[str, bytes]:
    """The content of the files by their paths below the folder of the model file, which is the
    first one.

    Only modules are found that the source imports by name: no data, and nothing that is loaded in
    another way.

    Raises:
        UsageError: they are too large to be sent, are outside the folder, or cannot be read.
    """
    folder = Path(model_file).absolute().parent
    return _collect(model_file, folder, source_files.local_files(model_file))


def collect_module(name: str, file: Path, folder: Path) -> dict[str, bytes]:
    """As :func:`collect`, for a module of ``-m``.

    Args:
        file: of the module.
        folder: below which it is.

    Raises:
        UsageError: as there.
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
