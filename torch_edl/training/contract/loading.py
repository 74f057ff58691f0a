"""Loading of a model file of any framework.

A file that breaks the contract is rejected with the name of the missing function and an example.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch_edl.errors import ContractError, describe_error
from torch_edl.interfaces import Signature
from torch_edl.interfaces.preprocessing import Fittable, is_fittable
from torch_edl.training.contract.advice import advice
from torch_edl.training.contract.argument_order import called_by, labels_first, refuse_class

FOR_ALL: Mapping[str, Signature] = {
    "eval_metrics_fn": Signature("def eval_metrics_fn(): return {'accuracy': accuracy}"),
    "callbacks": Signature("def callbacks(): return [MyCallback()]"),
    "data_source": Signature("def data_source(paths): return MySource(paths)", 1),
}
"""Signatures that all backends have, by the documented name of the function."""

OTHER_NAMES = ("elasticdl", "elasticai_api")
"""Packages of ElasticDL; torch-edl has other names for their contents."""

PROCESSORS = ("prediction_outputs_processor", "PredictionOutputsProcessor")
"""Names of the function or class that processes the outputs of a prediction."""


def load_functions(
    path: str,
    args: Sequence[str],
    signatures: Mapping[str, Signature],
    is_model: Callable[[Any], bool],
) -> dict[str, Any]:
    """Execute a model file and find its functions.

    Args:
        path: path of the model file.
        args: ``sys.argv[1:]`` of the file.
        signatures: signatures of the framework's functions, by documented name.
        is_model: returns True for a model, as opposed to a function that makes a model.

    Returns:
        Keyword arguments of the framework's contract class.

    Raises:
        ContractError: the file raised, or a function is missing or takes other arguments.
        UsageError: ``loss`` is a class.
    """
    module = _execute(path, args)
    names = {name: _find(path, module, name, each, is_model) for name, each in signatures.items()}
    found = {name: getattr(module, bound) if bound else None for name, bound in names.items()}
    refuse_class(f"{path}: loss", found["loss"])
    for name, function in found.items():
        if function is not None:
            _check_arguments(path, name, names[name], signatures[name], function)
    found["loss"] = labels_first(getattr(module, names["loss"]))
    processors = [getattr(module, name, None) for name in PROCESSORS]
    processor = next((each for each in processors if each is not None), None)
    made = processor() if isinstance(processor, type) else processor
    columns = _columns(path, module)
    rest = {"prediction_outputs_processor": made, "preprocessing": columns, "names": names}
    return {"path": path, **found, **rest}


def _columns(path: str, module: ModuleType) -> Fittable | None:
    """Return the preprocessing of the file, which may have any name, to be fitted and saved with
    the model; None: the file has none, or several objects of which none is fitted.

    Raises:
        ContractError: the file has several objects that are fitted.
    """
    found = {name: each for name, each in vars(module).items() if is_fittable(each)}
    if len({id(each) for each in found.values()}) > 1:
        found = {name: each for name, each in found.items() if each.needs_fit}
    if len({id(each) for each in found.values()}) > 1:
        raise ContractError(
            f"{path}: {' and '.join(found)} need to be fitted; a file can have only one such "
            "Columns(...): give it the outputs of all"
        )
    return next(iter(found.values()), None)


def _find(
    path: str,
    module: ModuleType,
    name: str,
    signature: Signature,
    is_model: Callable[[Any], bool],
) -> str:
    """Return the name of a function in the file; empty: the file lacks an optional function.

    Raises:
        ContractError: a required function is missing, or an object is not a function.
    """
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
    # The module has the name of the file, so that its classes can be pickled to processes of a
    # DataLoader. A name that is taken is changed, so that the file does not hide a library.
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
            f"{path}: {describe_error(error)}"
            + (_behind(path) if reads else "")
            + (_own_names(error) or advice(error))
        ) from error
    return module


def _own_names(error: Exception) -> str:
    """Return a hint for a model file that imports modules of ElasticDL; empty for other errors."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if (missing or "").partition(".")[0] not in OTHER_NAMES:
        return ""
    return (
        "; of ElasticDL's names, torch-edl has Mode (from torch_edl import Mode) and, for Keras, "
        "Embedding (from tf_compat import Embedding)"
    )


def _behind(path: str) -> str:
    return f"; pass its arguments behind --: torch-edl run {Path(path).name} ... -- ARGUMENTS"


def _check_arguments(
    path: str, name: str, bound: str, expected: Signature, function: Callable[..., Any]
) -> None:
    called = called_by(function)
    try:
        signature = inspect.signature(called)
    except ValueError:
        return  # a builtin has no signature to check
    try:
        signature.bind(*range(expected.arguments))
    except TypeError:
        raise ContractError(takes_others(path, name, f"{bound}{signature}", expected)) from None


def missing(path: str, name: str, found: Signature) -> str:
    """Return the message for a file that lacks a required function."""
    other = f" (or {', '.join(map(repr, found.others))})" if found.others else ""
    return f"{path}: no function {name!r}{other}: add for example:\n    {found.example}"


def takes_others(path: str, name: str, shown: str, found: Signature) -> str:
    """Return the message for a function that takes other arguments.

    Args:
        name: documented name of the function.
        shown: name and signature of the function in the file.
    """
    if name == "model":
        return (
            f"{path}: {shown} is called without arguments; give them defaults, or let the file "
            "read them from sys.argv (argparse) while it is loaded and pass them behind --: "
            f"torch-edl run {Path(path).name} ... -- ARGUMENTS"
        )
    count = found.arguments
    return (
        f"{path}: {shown} does not take {count} argument{'s' * (count != 1)}; write for example:\n"
        f"    {found.example}"
    )
