"""The user's model file: loaded, checked, and made uniform.

A file that breaks the contract is refused with the name of what is missing and an example line.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from torch_edl.argument_order import LabelsFirst, labels_first, refuse_class
from torch_edl.data.sources import Source
from torch_edl.errors import (
    ContractError,
    DataError,
    EdlError,
    UnsupportedOptimizerError,
    describe_error,
)
from torch_edl.nn.embedding import Table
from torch_edl.optim import optimizer_config
from torch_edl.signatures import PROCESSORS, SIGNATURES, missing
from torch_edl.wire import master_pb2 as pb

Metrics = Mapping[str, Any]

_OURS = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The functions of a model file, under the first of their accepted names."""

    path: str
    model: Callable[[], nn.Module]
    loss: LabelsFirst
    optimizer: Callable[[Any], torch.optim.Optimizer]
    feed: Callable[[Any, str, Any], Any]
    eval_metrics_fn: Callable[[], Metrics] | None
    scheduler: Callable[[torch.optim.Optimizer], Any] | None
    callbacks: Callable[[], Sequence[Any]] | None
    data_source: Callable[..., Any] | None
    prediction_outputs_processor: Any | None

    def make_model(self) -> nn.Module:
        """Calls the user's ``model``.

        Raises:
            ContractError: it raised, or returned no module.
        """
        module = self._call("model()", self.model)
        if not isinstance(module, nn.Module):
            raise self._wrong("model", module, "a torch.nn.Module")
        return module

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """Calls the user's ``optimizer`` with the parameters of ``module``."""
        made = self._call(
            "optimizer(model.parameters())", lambda: self.optimizer(module.parameters())
        )
        if not isinstance(made, torch.optim.Optimizer):
            raise self._wrong("optimizer", made, "a torch.optim.Optimizer")
        return made

    def make_scheduler(self, optimizer: torch.optim.Optimizer) -> Any | None:
        """Calls the user's ``scheduler``, if there is one."""
        if self.scheduler is None:
            return None
        made = self._call("scheduler(optimizer)", lambda: self.scheduler(optimizer))  # type: ignore[misc]
        if not hasattr(made, "step"):
            raise self._wrong("scheduler", made, "a scheduler of torch.optim.lr_scheduler")
        return made

    def make_metrics(self) -> dict[str, Any]:
        """Calls ``eval_metrics_fn``: name to a function of labels and predictions, or to an
        object that is updated, merged and computed."""
        if self.eval_metrics_fn is None:
            return {}
        made = self._call("eval_metrics_fn()", self.eval_metrics_fn)
        if not isinstance(made, Mapping) or not all(isinstance(k, str) for k in made):
            raise self._wrong("eval_metrics_fn", made, "a dict of name to metric")
        for name, metric in made.items():
            refuse_class(f"{self.path}: eval_metrics_fn()[{name!r}]", metric)
            if not (callable(metric) or hasattr(metric, "update")):
                raise self._wrong(f"eval_metrics_fn()[{name!r}]", metric, "a function or a metric")
        return dict(made)

    def make_sources(self, paths: Sequence[str]) -> dict[str, Source]:
        """Calls ``data_source``, if there is one: the sources by name."""
        if self.data_source is None:
            return {}
        made = self._call("data_source()", partial(self.data_source, paths))
        sources = list(made) if isinstance(made, list | tuple) else [made]
        by_name: dict[str, Source] = {}
        for source in sources:
            if not isinstance(source, Source):
                raise self._wrong(
                    "data_source", source,
                    "an object (or a list) with name, count, damaged, metadata and "
                    "read(start, end)",
                )  # fmt: skip
            if source.name in by_name:
                raise ContractError(
                    f"{self.path}: data_source returned two sources named {source.name!r}; give "
                    "each a name of its own"
                )
            by_name[source.name] = source
        return by_name

    def make_callbacks(self) -> list[Any]:
        """Calls ``callbacks``, if there is one."""
        if self.callbacks is None:
            return []
        made = self._call("callbacks()", self.callbacks)
        if not isinstance(made, Sequence):
            raise self._wrong("callbacks", made, "a list of objects")
        return list(made)

    def _call(self, name: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except (Exception, SystemExit) as error:
            raise ContractError(f"{self.path}: {name} raised {describe_error(error)}") from error

    def _wrong(self, name: str, got: Any, expected: str) -> ContractError:
        example = SIGNATURES[name.partition("(")[0]].example
        return ContractError(
            f"{self.path}: {name} returned {type(got).__name__}, expected {expected}; "
            f"for example:\n    {example}"
        )


def load_contract(path: str, args: Sequence[str] = ()) -> Contract:
    """Executes a model file and finds the functions of the contract in it.

    Args:
        args: becomes ``sys.argv[1:]`` of the file.

    Raises:
        ContractError: the file raised, or a function is missing or takes other arguments.
    """
    module = _execute(path, args)
    found = {name: _find(path, module, name) for name in SIGNATURES}
    refuse_class(f"{path}: loss", found["loss"])
    for name, function in found.items():
        if function is not None:
            _check_arguments(path, name, function)
    found["loss"] = labels_first(found["loss"])
    processors = [getattr(module, name, None) for name in PROCESSORS]
    processor = next((each for each in processors if each is not None), None)
    return Contract(
        path=path,
        **found,
        prediction_outputs_processor=processor() if isinstance(processor, type) else processor,
    )


def _find(path: str, module: ModuleType, name: str) -> Any:
    """A function of the file; None: there is none, and it is optional."""
    signature = SIGNATURES[name]
    bound = {each: getattr(module, each, None) for each in (name, *signature.others)}
    for each, found in bound.items():
        if isinstance(found, nn.Module) and name == "model":
            kind = type(found).__name__
            raise ContractError(
                f"{path}: {each} is a module ({kind}), not a function that makes one; every worker "
                f"makes its own:\n    def model(): return {kind}(...)"
            )
        if callable(found):
            return found
    for each, found in bound.items():
        if found is not None and not isinstance(found, ModuleType):
            raise ContractError(
                f"{path}: {each} is an object ({type(found).__name__}), not a function; "
                f"write for example:\n    {signature.example}"
            )
    if signature.required:
        raise ContractError(missing(path, name))
    return None


def _execute(path: str, args: Sequence[str]) -> ModuleType:
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.argv = [path, *args]
    name = Path(path).stem
    # Under its own name, so that classes defined there can be pickled to DataLoader processes;
    # a name that is taken (a model.py beside another) must not hide a library.
    name = name if name.isidentifier() and name not in sys.modules else f"_edl_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ContractError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:
        raise ContractError(
            f"{path}: called sys.exit({error.code!r}) while it was loaded; its arguments, after "
            f"--, were: {' '.join(args) or 'none'}" + (_behind(path) if error.code == 2 else "")
        ) from error
    except Exception as error:
        reads = "sys.argv" in (traceback.extract_tb(error.__traceback__)[-1].line or "")
        raise ContractError(
            f"{path}: {describe_error(error)}" + (_behind(path) if reads else "")
        ) from error
    return module


def _behind(path: str) -> str:
    return f"; pass its arguments behind --: torch-edl run {Path(path).name} ... -- ARGUMENTS"


def _check_arguments(path: str, name: str, function: Callable[..., Any]) -> None:
    # The signature of a module itself is that of nn.Module.__call__: anything.
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(called)
    except ValueError:
        return  # a builtin has no signature to check
    count = SIGNATURES[name].arguments
    try:
        signature.bind(*range(count))
    except TypeError:
        if name == "model":
            raise ContractError(
                f"{path}: {getattr(function, '__name__', name)}{signature} is called without "
                "arguments; give them defaults, or let the file read them from sys.argv (argparse) "
                f"while it is loaded and pass them behind --: torch-edl run {Path(path).name} ... "
                "-- ARGUMENTS"
            ) from None
        raise ContractError(
            f"{path}: {name}{signature} does not take {count} argument{'s' * (count != 1)}; "
            f"write for example:\n    {SIGNATURES[name].example}"
        ) from None


def user_traceback(error: BaseException, path: str) -> str:
    """The traceback of what the user's code raised, from the first frame of their file on.

    Our own frames at its end are left out, since the message says what was wrong, and so are
    those of libraries below a sys.exit(). An error of ours that did not pass through the file has
    no traceback: an empty string; any other error that did not has all of it that follows our
    frames.
    """
    cause = error.__cause__ if isinstance(error, EdlError) and error.__cause__ else error
    shown = traceback.TracebackException.from_exception(cause)
    wanted = Path(path).resolve()
    frames = list(shown.stack)
    files = [Path(frame.filename).resolve() for frame in frames]
    if wanted in files:
        last = len(frames)
        exits = isinstance(cause, SystemExit)
        while files[last - 1] != wanted and (exits or _OURS in files[last - 1].parents):
            last -= 1
        shown.stack = traceback.StackSummary.from_list(frames[files.index(wanted) : last])
    elif isinstance(cause, EdlError) or isinstance(error, DataError):
        return ""
    elif files and _OURS not in files[-1].parents:
        first = next(n for n, file in enumerate(files) if _OURS not in file.parents)
        shown.stack = traceback.StackSummary.from_list(frames[first:])
    return "".join(shown.format())


def argument_orders(contract: Contract) -> list[tuple[str, str]]:
    """Of the loss and of each metric that is a function: what it is, and how it is called."""
    found = [("loss", contract.loss)]
    found += [
        (f"metric {name}", labels_first(metric))
        for name, metric in contract.make_metrics().items()
        if not hasattr(metric, "update")
    ]
    return [(what, f"{f.name}{f.order}: {f.reason}") for what, f in found]


def report_model(module: nn.Module, optimizer: torch.optim.Optimizer) -> pb.ReportModelRequest:
    """What the master needs to know of a model to choose a strategy."""
    report = pb.ReportModelRequest(
        optimizer=type(optimizer).__name__,
        dense_elements=sum(p.numel() for p in module.parameters()),
    )
    try:
        optimizer_config(optimizer)
    except UnsupportedOptimizerError as error:
        report.optimizer_error = str(error)
    for name, part in module.named_modules():
        if isinstance(part, Table | nn.Embedding | nn.EmbeddingBag):
            report.embeddings.add(
                name=name,
                num_embeddings=part.num_embeddings or 0,
                dim=part.embedding_dim,
                dynamic=isinstance(part, Table),
            )
    return report
