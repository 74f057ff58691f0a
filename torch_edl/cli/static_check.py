"""Checks a model file without running it: whether it parses and binds the names of the contract.

Lenient on purpose: a def, a class, an import or an assignment anywhere at the top level binds a
name. The types of the values are checked where the file is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch_edl.errors import ContractError, UsageError


@dataclass(frozen=True, kw_only=True)
class Need:
    """A name of the contract that a model file binds."""

    names: tuple[str, ...]
    """Alternatives."""
    example: str


_MODEL = Need(
    names=("model", "forward", "custom_model"),
    example="def model(): return torch.nn.Linear(10, 1)",
)
_LOSS = Need(names=("loss",), example="def loss(labels, predictions): ...")
_OPTIMIZER = Need(
    names=("optimizer",),
    example="def optimizer(params): return torch.optim.SGD(params, lr=0.1)",
)
_FEED = Need(names=("feed", "dataset_fn"), example="def feed(records, mode, metadata): return x, y")
_METRICS = Need(
    names=("eval_metrics_fn",),
    example='def eval_metrics_fn(): return {"mse": torch.nn.functional.mse_loss}',
)
TRAIN_NEEDS = (_MODEL, _LOSS, _OPTIMIZER, _FEED)


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
    bound = set(bound_names(tree.body))
    if is_dynamic(tree) or "*" in bound:
        return frozenset(bound)
    needs = [*TRAIN_NEEDS, *[_METRICS] * evaluates]
    missing = [n for n in needs if bound.isdisjoint(n.names)]
    if missing:
        raise ContractError("\n".join(_complaint(shown, need) for need in missing))
    return frozenset(bound)


def _complaint(shown: str, need: Need) -> str:
    other = f" (or {', '.join(map(repr, need.names[1:]))})" if need.names[1:] else ""
    return f"{shown}: no function {need.names[0]!r}{other}: add for example:\n    {need.example}"


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
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {error.strerror}") from error
    try:
        return ast.parse(source, filename=shown)
    except SyntaxError as error:
        line = (error.text or "").rstrip("\n")
        mark = " " * ((error.offset or 1) - 1) + "^"
        excerpt = f"\n    {line}\n    {mark}" if line.strip() else ""
        raise UsageError(f"{shown}:{error.lineno or 1}: {error.msg}{excerpt}") from error
    except ValueError as error:  # null bytes
        raise UsageError(f"{shown}: not a Python file: {error}") from error


def bound_names(statements: Iterable[ast.stmt]) -> Iterator[str]:
    """Names bound by statements and by the blocks in them, but not inside defs and classes."""
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                yield alias.asname or alias.name.split(".")[0]
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from _targets(target)
        elif isinstance(statement, ast.AnnAssign):
            if statement.value is not None:
                yield from _targets(statement.target)
        else:
            if isinstance(statement, (ast.For, ast.AsyncFor)):
                yield from _targets(statement.target)
            elif isinstance(statement, (ast.With, ast.AsyncWith)):
                for item in statement.items:
                    if item.optional_vars is not None:
                        yield from _targets(item.optional_vars)
            yield from bound_names(_blocks(statement))


def _blocks(statement: ast.stmt) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            yield node
        elif isinstance(node, (ast.ExceptHandler, ast.match_case)):
            yield from node.body


def _targets(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def is_dynamic(tree: ast.Module) -> bool:
    """Whether the file may bind names at run time: exec, globals(), __getattr__."""
    return any(
        isinstance(node, ast.Name) and node.id in ("exec", "globals") for node in ast.walk(tree)
    ) or any(isinstance(s, ast.FunctionDef) and s.name == "__getattr__" for s in tree.body)
