"""The consoles of the terminal: results on stdout, errors on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_ANY_WIDTH = 10_000


def stdout() -> Console:
    """Return the console for results and for the progress of a training job.

    Rows in a file or a pipe are not wrapped: other programs read them line by line.
    """
    from rich.console import Console

    is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = _ANY_WIDTH if is_wide else None
    return Console(highlight=False, markup=False, emoji=False, width=width)


def stderr() -> Console:
    """Return the console for errors, and for progress if stdout carries a result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def table(*headers: str) -> Table:
    """Return an empty table with these headers; a header that ends in ``>`` is aligned right."""
    from rich import box
    from rich.table import Column, Table

    columns = [
        Column(header.removesuffix(">"), justify="right" if header.endswith(">") else "left")
        for header in headers
    ]
    return Table(*columns, box=box.SIMPLE_HEAD)


def complain(message: str, *, details: str = "") -> None:
    """Print an error after ``details``: the first line in red, the other lines without colour."""
    from rich.text import Text

    first, _, rest = message.partition("\n")
    console = stderr()
    sys.stdout.flush()
    if details:
        console.print(details.rstrip("\n"), soft_wrap=True)
    console.print(Text("error: " + first, style="bold red"), soft_wrap=True)
    if rest:
        console.print(rest, soft_wrap=True)
