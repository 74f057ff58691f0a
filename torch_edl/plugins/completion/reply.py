"""``torch-edl-complete``: gives a shell the possible next words of a ``torch-edl`` command line.

The shell passes the line in environment variables; argcomplete writes the words to file descriptor
8.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from argcomplete.completers import ChoicesCompleter, FilesCompleter, SuppressCompleter
from argcomplete.finders import CompletionFinder

from torch_edl.cli.arguments.parser import build_parser
from torch_edl.launch.jobs.folder import all_jobs

_FILE = re.compile(r"FILE|DIR|PATH|MODEL|SOURCE")
_WORDS = re.compile(r"[a-z0-9_-]+(\|[a-z0-9_-]+)+")


def main() -> None:
    """Write the completions of the line, and end the process."""
    parser = build_parser()
    _add_completers(parser)
    CompletionFinder()(parser, always_complete_options=False)


def _add_completers(parser: argparse.ArgumentParser) -> None:
    for action in _actions(parser):
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        if isinstance(action, argparse._SubParsersAction) or action.choices or action.nargs == 0:
            continue
        # argcomplete reads this attribute of an action.
        action.completer = _completer(metavar)  # type: ignore[attr-defined]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def _completer(metavar: str) -> object:
    """Return what completes a value, by its name on the help page."""
    if metavar == "JOB":
        return ChoicesCompleter(dict.fromkeys((job.name for job in all_jobs()), ""))
    if _WORDS.fullmatch(metavar):
        return ChoicesCompleter(dict.fromkeys(metavar.split("|"), ""))
    if metavar == "MODEL.py":
        return FilesCompleter(["py"])
    return FilesCompleter() if _FILE.search(metavar) else SuppressCompleter()
