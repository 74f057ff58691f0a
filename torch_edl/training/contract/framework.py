"""The frameworks of model files, and the detection of a file's framework."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.training.contract.source_files import imported, local_trees


@dataclass(frozen=True)
class Framework:
    """A framework, and the module of its backend."""

    name: str
    """Name of the framework, and of its extra of the package ``torch-edl``."""
    title: str
    """Name of the framework in messages."""
    packages: frozenset[str]
    """Packages whose import shows that a file is written for the framework."""
    module: str
    """Name of the backend, a module with ``warm_up``, ``load_contract`` and ``ModelFile``
    (:class:`~torch_edl.training.user_model.UserModel`)."""

    def load(self) -> Any:
        """Import the backend together with the framework, and return its module.

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
    """Return the framework of a model file from the imports of the file and of local modules.

    No code is run. The framework is torch if torch is imported at all, or if no framework is.
    """
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
