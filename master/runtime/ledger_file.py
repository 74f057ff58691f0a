"""The file of the task ledger: lines that are in the store are appended, and forced to the disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from torch_edl.typed_json import Count, parse

log = logging.getLogger(__name__)

# Bytes that are read at a time from the end of the file; the file may have many megabytes.
_STEP_BYTES = 64 << 10


class _Line(TypedDict):
    n: Count


class LedgerFile:
    """Continues the file of an earlier master, without a partial last line; ``anew`` removes it."""

    def __init__(self, path: Path, *, anew: bool) -> None:
        self._path, self._failed = path, False
        self.written = 0
        """Number of the last line of the file; 0 if it is empty."""
        if anew:
            path.unlink(missing_ok=True)
        self._repair()

    def write(self, state: Mapping[str, Any]) -> None:
        """Append the lines of a stored ledger that the file lacks. An error is logged once; the
        lines stay in the store and are written later."""
        first = state["count"] - len(state["lines"]) + 1
        lines = state["lines"][max(0, self.written + 1 - first) :]
        if not lines:
            return
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
            self.written, self._failed = state["count"], False
        except OSError as error:
            if not self._failed:
                log.warning("%s: %s: the task ledger is written later", self._path, error.strerror)
            self._failed = True
            self._repair()

    def _repair(self) -> None:
        try:
            with open(self._path, "r+b") as file:
                start, found = file.seek(0, os.SEEK_END), b""
                while start and found.count(b"\n") < 2:  # the last whole line, and a partial one
                    step = min(start, _STEP_BYTES)
                    start = file.seek(start - step)
                    found = file.read(step) + found
                end = found.rfind(b"\n") + 1
                file.truncate(start + end)
            self.written = parse(found[:end].splitlines()[-1], _Line)["n"] if end else 0
        except (OSError, ValueError):
            return
