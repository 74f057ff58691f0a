"""Tells a model file from a training script by reading the source, without running it.

A model file defines the functions of the contract, and torch-edl trains its model. A script has its
own training loop, with or without torch_edl.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from torch_edl.errors import ContractError, UsageError
from torch_edl.interfaces import Signature
from torch_edl.training.contract.advice import not_installed
from torch_edl.training.contract.backends import TORCH, backend_of, named
from torch_edl.training.contract.loading import OTHER_NAMES, missing, takes_others
from torch_edl.training.contract.source_files import imported, local_trees, starred

# A file that uses one of these names has its own loop, whatever else the file defines.
_OWN_LOOP = ("init", "ElasticTrainer")
# Names of the functions that tell a model file from a script, by the documented name.
_TELLING = {
    name: (name, *named(TORCH).signatures[name].others) for name in ("model", "loss", "feed")
}
_MAIN = "__main__.py"
# Expressions whose value may be a function.
_FUNCTIONS = (ast.Name, ast.Attribute, ast.Lambda)
# Programs that pip installs have no suffix.
_SUFFIXES = (".py", ".pyw", "")


@dataclass(frozen=True)
class FileKind:
    """The decision whether a file is a script, with the reason."""

    is_script: bool
    """True for a training script, False for a model file."""
    reason: str
    """Cause of the decision, as a clause for messages."""
    absent: str = ""
    """``model`` or ``loss`` if a script defines only the other one; empty: both or none."""


def kind_of(path: str) -> FileKind:
    """Decide whether a file is a model file or a training script.

    A file that defines at least two of ``model``, ``loss`` and ``feed`` is a model file, unless the
    file uses ``init`` or ``ElasticTrainer`` of torch_edl. ``model`` and ``feed`` must be functions
    or classes; ``loss`` may be the value of an expression in a file that defines ``model``. Any
    other file is a script. The words of the command line do not count: those after a script belong
    to the script.

    Raises:
        UsageError: the file is missing or is not Python.
    """
    packed = _packed(Path(path))
    if packed:
        return FileKind(True, packed)
    used = _own_loop(_parse(Path(path), path))
    if used:
        return FileKind(True, f"it uses torch_edl.{used}")
    file = Path(path).absolute()
    trees = [tree for _, tree in local_trees(file, file.parent, starred)]
    functions = {name for each in trees for name in _bound_names(each, evaluated=False)}
    there = [name for name, names in _TELLING.items() if not functions.isdisjoint(names)]
    if there == ["model"] and any("loss" in _bound_names(each) for each in trees):
        there.append("loss")
    if len(there) > 1:
        return FileKind(False, f"it defines {there[0]} and {there[1]}")
    if there in ([], ["feed"]):
        return FileKind(True, "it defines no model of the contract")
    absent = "loss" if there == ["model"] else "model"
    return FileKind(True, f"it defines {there[0]}, but not {absent}", absent)


def check_model_file(model_file: str, *, shown: str = "") -> frozenset[str]:
    """Raise an error if a file cannot be a model file, and return the names that it binds.

    The check is lenient: a def, a class, an import or an assignment anywhere at the top level binds
    a name. The types of the values are checked when the file is loaded.

    Args:
        shown: path for messages, as the user wrote it.

    Raises:
        UsageError: the file is missing or is not Python.
        ContractError: a required name is missing, or a function has a wrong number of arguments.
    """
    shown = shown or model_file
    tree = _parse(Path(model_file), shown)
    bound = frozenset(_bound_names(tree))
    if _is_dynamic(tree) or "*" in bound:
        return bound
    signatures = backend_of(model_file).signatures
    absent = [
        missing(shown, name, needed)
        for name, needed in signatures.items()
        if needed.required and bound.isdisjoint((name, *needed.others))
    ]
    if absent:
        if "optimizer" not in bound:
            absent.append(f"a training script is run by: torch-edl run -- {shown}")
        raise ContractError("\n".join(absent))
    for name, signature in signatures.items():
        _check_arguments(tree, shown, name, signature)
    return bound


def require_imports(file: str, *, shown: str) -> None:
    """Raise UsageError if a file imports a module that is not installed in this environment.

    Imports within blocks and functions are not checked, since they may be optional, nor is a file
    that changes ``sys.path`` or installs packages.

    Args:
        shown: path for messages, as the user wrote it.
    """
    path = Path(file).absolute()
    tree = _parse(path, shown)
    source = path.read_bytes()
    if any(word in source for word in (b"sys.path", b"from sys", b"sitedir", b"install")):
        return
    for statement in tree.body:
        names = []
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names = [statement.module]
        for name in {each.partition(".")[0] for each in names}:
            if name in OTHER_NAMES or name in sys.modules or _is_beside(name, path.parent):
                continue
            if find_spec(name) is None:
                raise UsageError(f"{shown}:{statement.lineno}: {not_installed(name)}")


def _is_beside(name: str, folder: Path) -> bool:
    return PathFinder.find_spec(name, [str(folder)]) is not None


def _check_arguments(tree: ast.Module, shown: str, name: str, expected: Signature) -> None:
    """Raise ContractError if a function has a wrong number of arguments, unless it has a decorator
    or its name is bound several times."""
    names = list(_bound_names(tree))
    bound = next((each for each in (name, *expected.others) if each in names), "")
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or function.name != bound:
            continue
        if function.decorator_list or names.count(bound) > 1:
            return
        takes = function.args
        most = len(takes.posonlyargs) + len(takes.args)
        least = most - len(takes.defaults)
        most = expected.arguments if takes.vararg else most
        if not least <= expected.arguments <= most or None in takes.kw_defaults:
            own = bound if name == "model" else name
            text = f"{own}({ast.unparse(takes)})"
            raise ContractError(takes_others(shown, name, text, expected))


def uses_torch_edl(script: str, root: Path | None = None) -> bool:
    """Return True if the script, or a local module that it imports, imports torch_edl.

    Args:
        root: folder of the local modules of a module that is run with ``-m``; None: the folder of
            the script.
    """
    if script.endswith(".pyc"):
        return b"torch_edl" in Path(script).read_bytes()
    return any(
        name.split(".")[0] == "torch_edl"
        for tree in _trees(script, root)
        for name, level in imported(tree)
        if not level
    )


def find_module(name: str, places: list[str]) -> Path | None:
    """Return the file that ``python -m name`` would run, without importing its packages."""
    parts = name.split(".")
    for place in places:
        base = Path(place or ".").joinpath(*parts)
        for file in (base / "__main__.py", base.with_name(base.name + ".py")):
            if file.is_file():
                return file
    return None


def _parse(path: Path, shown: str) -> ast.Module:
    if not path.exists():
        raise UsageError(f"{shown}: no such file; the model file comes first")
    if path.suffix not in _SUFFIXES:
        raise UsageError(
            f"{shown}: no Python file by its name; the model file or the script comes first, and "
            "its name ends in .py"
        )
    if path.is_dir():
        raise UsageError(f"{shown}: a folder; name the Python file, such as {shown}/model.py")
    try:
        return ast.parse(path.read_bytes(), filename=shown)
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {error.strerror}") from error
    except SyntaxError as error:
        line = (error.text or "").rstrip("\n")
        mark = " " * ((error.offset or 1) - 1) + "^"
        excerpt = f"\n    {line}\n    {mark}" if line.strip() else ""
        raise UsageError(f"{shown}:{error.lineno or 1}: {error.msg}{excerpt}") from error
    except ValueError as error:  # null bytes
        raise UsageError(f"{shown}: not a Python file: {error}") from error


def _bound_names(node: ast.AST, *, evaluated: bool = True) -> Iterator[str]:
    """Yield the names bound at the top level and in its blocks, but not in functions or classes.

    Args:
        evaluated: False: without names that are assigned the value of an expression, such as
            ``model = Net()``; ``model = Net`` counts.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
        elif isinstance(child, ast.alias):
            yield child.asname or child.name.split(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, ast.AnnAssign) and child.value is None:
            continue  # a declaration without a value binds nothing
        elif isinstance(child, ast.Assign) and not (evaluated or _may_be_functions(child.value)):
            continue
        elif not isinstance(child, ast.Lambda | ast.comprehension):
            yield from _bound_names(child, evaluated=evaluated)


def _may_be_functions(value: ast.expr) -> bool:
    """Return True for a value such as ``Net``, ``nets.model`` or a tuple of those."""
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    return all(isinstance(each, _FUNCTIONS) for each in values)


def _is_dynamic(tree: ast.Module) -> bool:
    """Return True if the file may bind names at run time: exec, globals(), __getattr__."""
    return any(
        isinstance(node, ast.Name) and node.id in ("exec", "globals") for node in ast.walk(tree)
    ) or any(isinstance(s, ast.FunctionDef) and s.name == "__getattr__" for s in tree.body)


def _packed(path: Path) -> str:
    """Return the kind of a program that is not a source file; empty for any other path."""
    if path.is_dir():
        return "a folder with __main__.py" if (path / _MAIN).is_file() else ""
    if path.suffix == ".pyc":
        return "compiled Python"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        return "an archive with __main__.py" if {_MAIN, f"{_MAIN}c"} & set(names) else ""
    return ""


def _own_loop(tree: ast.Module) -> str:
    """Return ``init`` or ``ElasticTrainer`` if the file uses that name of torch_edl; else empty."""
    nodes = list(ast.walk(tree))
    aliases = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "torch_edl"
    }
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in aliases
    }
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch_edl":
            used.update(alias.name for alias in node.names)
    return next((name for name in _OWN_LOOP if name in used), "")


def _trees(script: str, root: Path | None = None) -> Iterator[ast.Module]:
    """Yield the syntax trees of a program and of its local modules, as far as they can be
    parsed."""
    path = Path(script).absolute()
    if path.is_dir():
        yield from (tree for _, tree in local_trees(path / _MAIN, path, imported))
    elif path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".py"):
                    with contextlib.suppress(SyntaxError, ValueError):
                        yield ast.parse(archive.read(name))
    else:
        yield from (tree for _, tree in local_trees(path, root or path.parent, imported))
