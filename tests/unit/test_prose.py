"""Docstrings are understood without the code below them: riddles and idioms may not come back."""

from __future__ import annotations

import ast
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
