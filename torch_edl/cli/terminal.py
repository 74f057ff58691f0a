"""What is written to the terminal: results to stdout, complaints to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    """The console of results, and of a training job's progress."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def stderr() -> Console:
    """The console of errors, and of progress where stdout carries a result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def complain(message: str, *, details: str = "") -> None:
    """One clear red line; what follows its first line, and ``details``, is not red."""
    from rich.text import Text

    first, _, rest = message.partition("\n")
    console = stderr()
    sys.stdout.flush()
    if details:
        console.print(details.rstrip("\n"), soft_wrap=True)
    console.print(Text("error: " + first, style="bold red"), soft_wrap=True)
    if rest:
        console.print(rest, soft_wrap=True)
