"""The source files of a program, found from its import statements without running code, and
tracebacks of its errors."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from torch_edl.errors import DataError, EdlError, UsageError


def local_trees(
    path: Path, root: Path, imported: Callable[[ast.Module], Iterable[tuple[str, int]]]
) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the file and all modules below ``root`` that it imports, directly or indirectly, with
    their syntax trees. Files that cannot be parsed are skipped.

    Args:
        imported: returns the imports of a tree: dotted name, and number of leading dots.
    """
    seen, waiting = {path}, [path]
    while waiting:
        file = waiting.pop()
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # the run reports the error
        yield file, tree
        for name, level in imported(tree):
            for found in files_of(name, file.parents[level - 1] if level else root):
                if found not in seen:
                    seen.add(found)
                    waiting.append(found)


def imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the modules that a tree may import: dotted name, and number of leading dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, 0
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level
            for alias in node.names:  # an alias may be a submodule
                yield ".".join(filter(None, (node.module, alias.name))), node.level


def starred(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the modules of ``from module import *``: dotted name, and number of leading dots."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield node.module or "", node.level


def files_of(name: str, base: Path) -> Iterator[Path]:
    """Yield the files of a module below ``base`` and of its parent packages."""
    place = base
    for part in filter(None, name.split(".")):
        if (place / part / "__init__.py").is_file():
            yield place / part / "__init__.py"
        elif (place / f"{part}.py").is_file():
            yield place / f"{part}.py"
        place = place / part


def sources(file: Path, folder: Path, others: Iterable[Path] = (), *, fix: str) -> dict[str, bytes]:
    """Return the content of a source file, and of the local modules that it imports, by their paths
    below a folder. The file is the first one.

    Only modules that the source imports by name are found: no data files, and no modules that are
    loaded in another way.

    Args:
        others: further source files to begin with.
        fix: advice for the user, for an error.

    Raises:
        UsageError: a file is outside the folder or unreadable.
    """
    files: dict[Path, None] = {file: None}
    for start in (file, *others):
        files |= dict.fromkeys(found for found, _ in local_trees(start, folder, imported))
    contents: dict[str, bytes] = {}
    for each in files:
        if not each.is_relative_to(folder):
            raise UsageError(
                f"{each}: is imported, and outside the folder {folder}: modules of other folders "
                f"are not sent; {fix}"
            )
        try:
            contents[each.relative_to(folder).as_posix()] = each.read_bytes()
        except OSError as error:
            raise UsageError(f"{each}: cannot be read: {error.strerror}") from error
    return contents


_OURS = Path(__file__).resolve().parents[2]


def user_line(error: BaseException, path: str) -> str:
    """Return where the user's file raised an error, such as " [model.py, line 9]"; empty if the
    file did not.

    Args:
        error: the error; an EdlError is replaced by its cause.
        path: path of the user's file.
    """
    cause = error.__cause__ if isinstance(error, EdlError) and error.__cause__ else error
    wanted, frames = Path(path).resolve(), traceback.extract_tb(cause.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == wanted]
    return f" [{wanted.name}, line {lines[-1]}]" if lines else ""


def user_traceback(error: BaseException, path: str) -> str:
    """Return the traceback of an error, from the first frame of the user's file.

    Trailing frames of this package are left out, since the message explains the error. For
    ``sys.exit()`` trailing frames of libraries are left out too. If the file is not in the
    traceback, the result is empty for an error of this package. For any other error it begins at
    the first frame outside this package.

    Args:
        error: the error; an EdlError is replaced by its cause.
        path: path of the user's file.
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
