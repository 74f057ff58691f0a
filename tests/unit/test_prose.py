"""Docstrings are understood without the code below them: riddles and idioms may not come back, and
what docstrings and pages name exists."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("torch_edl", "master", "tf_compat")
# Each has a word of the field: an answer is received, a process is lost, memory is released.
IDIOMS = re.compile(
    r"\b(any more|of today|of now|given up|lets? go of|(is|was) heard|hears?|heard of|nobody"
    r"|so many|so long|what for|in the meantime|says so|takes? it over)\b",
    re.IGNORECASE,
)
# A docstring begins with a noun or a verb.
WITHOUT_SUBJECT = re.compile(r"(Of|As|Beyond|Behind|From|At|In|Whether it|It is|What is|How it)\b")


def docstrings(package: str) -> Iterator[tuple[str, str]]:
    """(place, text) of all docstrings of a package, attributes included."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if "_pb2" in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text.strip()


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_are_plain_english(package: str) -> None:
    found = [
        f"{place}: {text.splitlines()[0]}"
        for place, text in docstrings(package)
        if IDIOMS.search(text) or WITHOUT_SUBJECT.match(text)
    ]
    assert not found, "\n".join(found)


# ":class:`~torch_edl.tables.table.EmbeddingTable.pull`", and `torch_edl/tables/table.py`.
REFERENCE = re.compile(r":\w+:`~?((?:torch_edl|master|tf_compat)\.[\w.]+)`")
FILE = re.compile(r"\b((?:torch_edl|master|tf_compat|tests|benchmarks|examples)/[\w/]+\.\w+)")


@functools.cache
def names_in(module: str) -> set[str] | None:
    """What a module defines, imports or assigns; None if there is no such module."""
    base = ROOT / module.replace(".", "/")
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    if not path.exists():
        return None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        str(name)
        for node in ast.walk(tree)
        for field in ("name", "asname", "id", "attr")
        if (name := getattr(node, field, None))
    }


def exists(reference: str) -> bool:
    module, names = reference, []
    while (known := names_in(module)) is None:
        module, _, name = module.rpartition(".")
        names.append(name)
    return "_pb2" in module or known.issuperset(names)


def test_what_texts_refer_to_exists() -> None:
    texts = [text for package in PACKAGES for text in docstrings(package)]
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")]:
        texts.append((path.name, path.read_text(encoding="utf-8")))
    wrong = [
        f"{place}: {found}"
        for place, text in texts
        for found in REFERENCE.findall(text) + FILE.findall(text)
        if not (exists(found) if "/" not in found else (ROOT / found).exists())
    ]
    assert not wrong, "\n".join(wrong)
