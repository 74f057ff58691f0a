"""The backend of TensorFlow, as :class:`torch_edl.interfaces.Backend`.

This module imports TensorFlow only when a method needs it: the client reads names and signatures
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_compat.signatures import SIGNATURES
from torch_edl.errors import UsageError
from torch_edl.interfaces import Backend


class _TensorFlow(Backend):
    name = "tensorflow"
    title = "TensorFlow"
    signatures = SIGNATURES
    options = frozenset({"--tf-function"})
    exports = (".keras", "")

    def warm_up(self) -> None:
        import keras

        if keras.backend.backend() != "tensorflow":
            raise UsageError(
                f"the backend of Keras is {keras.backend.backend()}: models train on that of "
                "TensorFlow; remove KERAS_BACKEND and ~/.keras/keras.json"
            )

    def load_contract(self, path: str, args: Sequence[str]) -> Any:
        from tf_compat.contract import load_contract

        return load_contract(path, args)

    def make_model(self, functions: Any, config: Any) -> Any:
        from tf_compat.model_file import KerasModelFile

        return KerasModelFile(functions, config)

    def export(self, folder: Path, model_file: str, file: Path) -> str:
        from tf_compat.export import export

        return export(folder, model_file, file)


BACKEND = _TensorFlow()
