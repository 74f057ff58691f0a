"""Finds the backend of a model file, without running the file."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torch_edl.config import extensions
from torch_edl.errors import UsageError
from torch_edl.interfaces import Backend
from torch_edl.training.contract.source_files import imported, local_trees

if TYPE_CHECKING:
    from torch_edl.config import JobConfig

TORCH = "torch"
"""Name of the built-in backend."""


def backend_of(path: str) -> Backend:
    """Return the backend of a model file from the imports of the file and of local modules.

    No code is run. The backend is that of torch if torch is imported at all, or if no package of
    another backend is.
    """
    return named(package_of(path))


def package_of(path: str) -> str:
    """Return the imported package from which :func:`backend_of` tells the backend."""
    file = Path(path).absolute()
    found = {
        name.partition(".")[0]
        for _, tree in local_trees(file, file.parent, imported)
        for name, level in imported(tree)
        if not level
    }
    others = sorted(found & extensions.installed(extensions.BACKENDS).keys())
    return others[0] if others and TORCH not in found else TORCH


def named(package: str) -> Backend:
    """Return the backend of a package.

    Raises:
        UsageError: no installed package offers the backend.
    """
    if package == TORCH:
        # Imported by name: the package torch_edl.pytorch builds upon this one.
        built_in: Backend = importlib.import_module("torch_edl.pytorch.backend").BACKEND
        return built_in
    loaded: Backend = extensions.load(extensions.BACKENDS, package, package)
    return loaded


def preloaded(config: JobConfig) -> list[str]:
    """Return what a node imports to fork the workers of a job: the framework, and the format of the
    data files if their names tell it. Empty if the node is to fork none, since the framework starts
    threads when it is imported."""
    if config.kind == "script" or package_of(config.model_file) != TORCH:
        return []
    # Imported here: the client imports this module.
    from torch_edl.data.sources.opening import suffix_of

    data = config.data
    files = (*data.train, *data.eval, *data.predict, "")
    format = suffix_of(files[0]) if data.format == "auto" else data.format
    return [TORCH, format] if format else [TORCH]


@contextmanager
def importing(backend: Backend) -> Iterator[None]:
    """Name the extra to install if the block imports a framework that is missing.

    Raises:
        UsageError: the framework is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package != TORCH and package not in extensions.installed(extensions.BACKENDS):
            raise
        raise UsageError(
            f"{backend.title} is not installed, and the model file imports it: "
            f"pip install 'torch-edl[{backend.name}]'"
        ) from error
