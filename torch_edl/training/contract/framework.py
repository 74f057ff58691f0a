"""The frameworks of model files, and which of them a file is written for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.training.contract.source_files import imported, local_trees


@dataclass(frozen=True)
class Framework:
    """A framework, and the module that a worker trains its models with."""

    name: str
    title: str
    """As its users write it."""
    packages: frozenset[str]
    """A file that imports one of these is written for the framework."""
    module: str
    """Has ``warm_up``, ``load_contract`` and ``ModelFile``
    (:class:`~torch_edl.training.user_model.UserModel`)."""

    def load(self) -> Any:
        """Imports the module, and the framework with it.

        Raises:
            UsageError: the framework is not installed.
        """
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in self.packages:
                raise
            raise UsageError(
                f"{self.title} is not installed, and the model file imports it: "
                f"pip install 'torch-edl[{self.name}]'"
            ) from error


TORCH = Framework("torch", "PyTorch", frozenset({"torch"}), "torch_edl.pytorch.model_file")
TENSORFLOW = Framework(
    "tensorflow", "TensorFlow", frozenset({"tensorflow", "keras", "tf_compat"}),
    "tf_compat.model_file",
)  # fmt: skip


def framework_of(path: str) -> Framework:
    """The framework of a model file, by what the file and the modules beside it import, without
    running them. A file that imports torch is of torch, whatever else it imports."""
    file = Path(path).absolute()
    found = {
        name.partition(".")[0]
        for _, tree in local_trees(file, file.parent, imported)
        for name, level in imported(tree)
        if not level
    }
    if found & TORCH.packages or not found & TENSORFLOW.packages:
        return TORCH
    return TENSORFLOW
