"""The user's model file, whatever its framework: loaded, its functions found, and what all
frameworks call alike.

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
from typing import TYPE_CHECKING, Any, ClassVar

from torch_edl.argument_order import LabelsFirst, called_by, labels_first, refuse_class
from torch_edl.data.sources import Source
from torch_edl.errors import ContractError, DataError, EdlError, describe_error
from torch_edl.signatures import PROCESSORS, Signature, missing

if TYPE_CHECKING:
    from torch_edl.preprocessing import Columns

Metrics = Mapping[str, Any]

_OURS = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class UserFunctions:
    """The functions of a model file that mean the same in all frameworks, under the first of their
    accepted names."""

    path: str
    model: Callable[[], Any]
    loss: LabelsFirst
    feed: Callable[[Any, str, Any], Any]
    eval_metrics_fn: Callable[[], Metrics] | None
    callbacks: Callable[[], Sequence[Any]] | None
    data_source: Callable[..., Any] | None
    prediction_outputs_processor: Any | None
    preprocessing: Columns | None
    """What the file makes of columns, fitted before training where it has to be."""

    signatures: ClassVar[Mapping[str, Signature]]
    """Of the functions in the framework of the file."""

    def check_metric(self, what: str, metric: Any) -> None:
        """Refuses what cannot be a metric.

        Raises:
            UsageError: it is a class, or nothing that is called or updated.
        """
        refuse_class(f"{self.path}: {what}", metric)
        if not (callable(metric) or hasattr(metric, "update")):
            raise self._wrong(what, metric, "a function or a metric")

    def make_metrics(self) -> dict[str, Any]:
        """Calls ``eval_metrics_fn``: name to a function of labels and predictions, or to an
        object that is updated, merged and computed."""
        if self.eval_metrics_fn is None:
            return {}
        made = self._call("eval_metrics_fn()", self.eval_metrics_fn)
        if not isinstance(made, Mapping) or not all(isinstance(k, str) for k in made):
            raise self._wrong("eval_metrics_fn", made, "a dict of name to metric")
        for name, metric in made.items():
            self.check_metric(f"eval_metrics_fn()[{name!r}]", metric)
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
        example = self.signatures[name.partition("(")[0]].example
        return ContractError(
            f"{self.path}: {name} returned {type(got).__name__}, expected {expected}; "
            f"for example:\n    {example}"
        )


def load_functions(
    path: str,
    args: Sequence[str],
    signatures: Mapping[str, Signature],
    is_model: Callable[[Any], bool],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Executes a model file and finds its functions.

    Args:
        args: becomes ``sys.argv[1:]`` of the file.
        is_model: whether an object is a model, rather than a function that makes one.

    Returns:
        What the class of the framework's contract is made of, and the name that the file has for
        each function.

    Raises:
        ContractError: the file raised, or a function is missing or takes other arguments.
    """
    module = _execute(path, args)
    names = {name: _find(path, module, name, each, is_model) for name, each in signatures.items()}
    found = {name: getattr(module, bound) if bound else None for name, bound in names.items()}
    refuse_class(f"{path}: loss", found["loss"])
    for name, function in found.items():
        if function is not None:
            _check_arguments(path, name, signatures[name], function)
    found["loss"] = labels_first(getattr(module, names["loss"]))
    processors = [getattr(module, name, None) for name in PROCESSORS]
    processor = next((each for each in processors if each is not None), None)
    made = processor() if isinstance(processor, type) else processor
    columns = _columns(path, module)
    rest = {"prediction_outputs_processor": made, "preprocessing": columns}
    return {"path": path, **found, **rest}, names


def _columns(path: str, module: ModuleType) -> Columns | None:
    """The preprocessing of the file, under any name."""
    # A file that has one has imported it, and with it pyarrow.
    library = sys.modules.get("torch_edl.preprocessing")
    if library is None:
        return None
    found = {n: each for n, each in vars(module).items() if isinstance(each, library.Columns)}
    if len({id(each) for each in found.values()}) > 1:
        raise ContractError(
            f"{path}: {' and '.join(found)} are preprocessing; one Columns(...) of the file can "
            "be fitted: give it the outputs of all"
        )
    return next(iter(found.values()), None)


def _find(
    path: str,
    module: ModuleType,
    name: str,
    signature: Signature,
    is_model: Callable[[Any], bool],
) -> str:
    """The name that the file has for a function; empty: there is none, and it is optional."""
    bound = {each: getattr(module, each, None) for each in (name, *signature.others)}
    for each, found in bound.items():
        if name == "model" and is_model(found):
            kind = type(found).__name__
            raise ContractError(
                f"{path}: {each} is a model ({kind}), not a function that makes one; every worker "
                f"makes its own:\n    def model(): return {kind}(...)"
            )
        if callable(found):
            return each
    for each, found in bound.items():
        if found is not None and not isinstance(found, ModuleType):
            raise ContractError(
                f"{path}: {each} is an object ({type(found).__name__}), not a function; "
                f"write for example:\n    {signature.example}"
            )
    if signature.required:
        raise ContractError(missing(path, name, signature))
    return ""


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


def _check_arguments(
    path: str, name: str, expected: Signature, function: Callable[..., Any]
) -> None:
    called = called_by(function)
    try:
        signature = inspect.signature(called)
    except ValueError:
        return  # a builtin has no signature to check
    count = expected.arguments
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
            f"write for example:\n    {expected.example}"
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


def argument_orders(functions: UserFunctions) -> list[tuple[str, str]]:
    """Of the loss and of each metric that is a function: what it is, and how it is called."""
    found = [("loss", functions.loss)]
    found += [
        (f"metric {name}", labels_first(metric))
        for name, metric in functions.make_metrics().items()
        if not hasattr(metric, "update")
    ]
    return [(what, f"{f.name}{f.order}: {f.reason}") for what, f in found]
