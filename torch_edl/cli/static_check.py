"""Checks a model file without running it: whether it parses and binds the names of the contract.

Lenient on purpose: a def, a class, an import or an assignment anywhere at the top level binds a
name. The types of the values are checked where the file is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from torch_edl.errors import ContractError, UsageError
from torch_edl.signatures import SIGNATURES, missing


def check(model_file: str, *, evaluates: bool, shown: str = "") -> frozenset[str]:
    """Rejects a file that cannot be a model file.

    Args:
        evaluates: whether metrics are needed.
        shown: the path as the user wrote it, for messages.

    Returns:
        The names that the top level binds, as far as the source shows.

    Raises:
        UsageError: the file is missing or is not Python.
        ContractError: the file does not bind a name of the contract.
    """
    shown = shown or model_file
    tree = parse(Path(model_file), shown)
    bound = frozenset(bound_names(tree))
    if is_dynamic(tree) or "*" in bound:
        return bound
    absent = [
        missing(shown, name)
        for name, needed in SIGNATURES.items()
        if (needed.required or (evaluates and name == "eval_metrics_fn"))
        and bound.isdisjoint((name, *needed.others))
    ]
    if absent:
        raise ContractError("\n".join(absent))
    return bound


def parse(path: Path, shown: str) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        UsageError: the file is missing, unreadable or not Python.
    """
    if not path.exists():
        raise UsageError(f"{shown}: no such file; the model file comes first")
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


def bound_names(node: ast.AST) -> Iterator[str]:
    """Names that a file binds at the top level or in blocks there, not in functions and classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
        elif isinstance(child, ast.alias):
            yield child.asname or child.name.split(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, ast.AnnAssign) and child.value is None:
            continue  # a declaration
        elif not isinstance(child, ast.Lambda | ast.comprehension):
            yield from bound_names(child)


def is_dynamic(tree: ast.Module) -> bool:
    """Whether the file may bind names at run time: exec, globals(), __getattr__."""
    return any(
        isinstance(node, ast.Name) and node.id in ("exec", "globals") for node in ast.walk(tree)
    ) or any(isinstance(s, ast.FunctionDef) and s.name == "__getattr__" for s in tree.body)
