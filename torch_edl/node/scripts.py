"""The packages that a script imports before anything else, which a fork server may import first."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

_FRAMEWORK = "torch"
_OURS = "torch_edl"
# What a script that imports torch_edl after torch needs in any case.
_API = ("torch_edl.api.opening", "torch_edl.api.job", "torch_edl.api.elastic_trainer")
_PACKAGES = ("numpy", _FRAMEWORK, _OURS)


def leading_imports(command: Sequence[str]) -> list[str]:
    """Return the modules of numpy, torch and torch_edl that a script imports before its first
    statement of another kind; empty if torch is not one of them, or if the command is no script.

    Imports of the standard library may precede them. Other packages, and modules of the user, may
    set a variable that torch reads while it is imported, or change what it imports.

    Args:
        command: ``python -u script.py ...`` or ``python -u -m module ...``.
    """
    if list(command[:2]) != [sys.executable, "-u"]:
        return []
    if command[2:3] == ["-m"]:
        files, folder = _files_of_module(command[3]), os.getcwd()
    else:
        files, folder = [Path(command[2])], script_folder(command[2])
    found: list[str] = []
    for name in _leading(files):
        package = name.partition(".")[0]
        if package in _PACKAGES:
            found.append(name)
        # A file of the user may have the name of a module of the standard library.
        elif package not in sys.stdlib_module_names or PathFinder.find_spec(package, [folder]):
            break
    packages = [name.partition(".")[0] for name in found]
    if _FRAMEWORK not in packages:
        return []
    return [*found, *(_API if _OURS in packages else ())]


def script_folder(script: str) -> str:
    """Return the folder of a script, which Python puts first in ``sys.path``."""
    return os.path.dirname(os.path.realpath(script))


def _leading(files: Sequence[Path]) -> Iterator[str]:
    """Yield the modules that these files import, until the first other statement."""
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return
        for statement in tree.body:
            match statement:
                case ast.Import():
                    yield from (alias.name for alias in statement.names)
                case ast.ImportFrom(module=str(module), level=0):
                    yield module
                case ast.Expr(value=ast.Constant()):  # a docstring
                    pass
                case _:
                    return


def _files_of_module(name: str) -> list[Path]:
    """Return the files that ``python -m name`` runs, in their order; empty if one is not found."""
    files: list[Path] = []
    places: Sequence[str] | None = [os.getcwd(), *sys.path]
    for part in name.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None or spec.origin is None:
            return []
        files.append(Path(spec.origin))
        places = spec.submodule_search_locations
    if places is not None:
        files.append(files[-1].with_name("__main__.py"))
    return files
