"""The interface of backends: frameworks of model files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_edl.config import JobConfig


@dataclass(frozen=True)
class Signature:
    """The signature of a function that a model file defines."""

    example: str
    """Example of a definition, for messages."""
    arguments: int = 0
    """Number of positional arguments."""
    others: tuple[str, ...] = ()
    """Further accepted names."""
    required: bool = False
    """True if a model file must define the function."""


class Backend(ABC):
    """A framework of model files: reads their functions, and makes models that a worker trains.

    An entry point of the group ``torch_edl.backends`` names an instance; the name of the entry
    point is a package that model files of the framework import. PyTorch is built in, and is also
    the backend of files that import none of these packages. A model file is recognised by reading
    its imports, not by running it, and the client reads the attributes: the module of the instance
    must not import the framework.

    ``torch_edl/pytorch`` and ``tf_compat`` are two backends; many of their modules, such as
    ``step`` and ``replica``, have the same name in both::

        class JaxBackend(Backend):
            name, title = "jax", "JAX"
            signatures = {"model": Signature("def model(): ...", required=True), **FOR_ALL}

            def make_model(self, functions, config):
                from my_package.model_file import ModelFile  # a UserModel

                return ModelFile(functions, config)

        JAX = JaxBackend()
    """

    name: str
    """Name of the framework, and of the extra of the package that installs it."""
    title: str
    """Name of the framework in messages."""
    signatures: Mapping[str, Signature]
    """Signatures of the functions of a model file by their documented names, at least ``model``,
    ``loss``, ``optimizer`` and ``feed``; ``torch_edl.training.contract.loading.FOR_ALL`` has
    those that are the same for all frameworks."""
    options: frozenset[str] = frozenset()
    """Options of the command line that only some frameworks support, and this one does."""
    exports: tuple[str, ...] = ()
    """Suffixes of the files that :meth:`export` writes; an empty one stands for a folder."""

    @abstractmethod
    def warm_up(self) -> None:
        """Import the framework before a model file is loaded.

        Raises:
            ModuleNotFoundError: the framework is not installed.
            UsageError: the framework cannot be used as it is configured.
        """

    @abstractmethod
    def load_contract(self, path: str, args: Sequence[str]) -> Any:
        """Execute a model file and return its functions.

        Args:
            args: ``sys.argv[1:]`` of the file.

        Returns:
            A subclass of :class:`~torch_edl.training.contract.functions.UserFunctions`.

        Raises:
            ContractError: the file raised, or a function is missing or takes other arguments.
        """

    @abstractmethod
    def make_model(self, functions: Any, config: JobConfig) -> Any:
        """Make the model of a worker, with its step, its rows and its engines.

        Args:
            functions: what :meth:`load_contract` returned.

        Returns:
            A :class:`~torch_edl.training.user_model.UserModel`.

        Raises:
            ContractError: a function of the file raised or returned an invalid value.
        """

    @abstractmethod
    def export(self, folder: Path, model_file: str, file: Path) -> str:
        """Write a trained model as one file in the format of the framework.

        Args:
            folder: a checkpoint or an output folder.
            model_file: path of the model file; empty if the user named none.
            file: the file to write; its suffix is one of :attr:`exports`.

        Returns:
            A line for the user.

        Raises:
            CheckpointError: the model is damaged.
            EdlError: the file cannot be written.
        """
