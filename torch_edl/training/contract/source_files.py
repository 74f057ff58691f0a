"""The source of a program: its files, and what they import. Read, never run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def local_files(path: str) -> list[Path]:
    """The file, and the modules below its folder that it imports, directly or not. A relative
    import may lead to files beside or above the folder."""
    file = Path(path).absolute()
    return [found for found, _ in local_trees(file, file.parent, imported)]


def module_files(name: str, file: Path, root: Path) -> list[Path]:
    """The files that ``python -m name`` runs of those below a folder: packages on the way, the
    module, and what these import, directly or not.

    Args:
        file: of the module.
    """
    found = {file: None}
    for start in (file, *_files_of(name, root)):
        found |= dict.fromkeys(path for path, _ in local_trees(start, root, imported))
    return list(found)


def local_trees(
    path: Path, root: Path, imported: Callable[[ast.Module], Iterable[tuple[str, int]]]
) -> Iterator[tuple[Path, ast.Module]]:
    """The file, and the modules below ``root`` that it imports, directly or not."""
    seen, waiting = {path}, [path]
    while waiting:
        file = waiting.pop()
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # the run reports the error
        yield file, tree
        for name, level in imported(tree):
            for found in _files_of(name, file.parents[level - 1] if level else root):
                if found not in seen:
                    seen.add(found)
                    waiting.append(found)


def imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Modules that may be imported: dotted name, and the dots of a relative import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, 0
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level
            for alias in node.names:  # a submodule, or a name of the module
                yield ".".join(filter(None, (node.module, alias.name))), node.level


def starred(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Modules all of whose names the file takes."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield node.module or "", node.level


def _files_of(name: str, base: Path) -> Iterator[Path]:
    """The files that importing ``name`` from ``base`` runs: packages on the way, and itself."""
    place = base
    for part in filter(None, name.split(".")):
        if (place / part / "__init__.py").is_file():
            yield place / part / "__init__.py"
        elif (place / f"{part}.py").is_file():
            yield place / f"{part}.py"
        place = place / part
