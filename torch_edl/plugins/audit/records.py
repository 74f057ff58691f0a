"""The lines of ``tasks.jsonl``: reading, the chain of hashes, and the stored state. No writing."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

from torch_edl.typed_json import MOST_BYTES, Count, Time, parse

Entry = tuple[int, float, list[Any]]
"""Number of the line, Unix time, and the entry."""
_SHA = re.compile(r', "sha": "([0-9a-f]{32})"\}')
_SHA_CHARACTERS = len(', "sha": ""}') + 32
# Bytes of the file between two reports of the progress.
_STEP_BYTES = 1 << 18


class _Line(TypedDict):
    n: Count
    time: Time
    entries: list[list[Any]]
    sha: str


class _Stored(TypedDict):
    count: Count
    sha: str
    lines: list[str]


class _State(TypedDict):
    ledger: _Stored


class Records:
    """What a folder holds of the ledger, read once from its beginning, a line at a time.

    Of a running job, the stored state is read first. The file then has all lines that the state
    lacks, and later lines are left out, so the entries are those of one moment.

    Args:
        runs: the job runs.
        progress: called with the bytes that were read and the size of the file.
    """

    def __init__(
        self,
        folder: Path,
        *,
        runs: bool = False,
        progress: Callable[[int, int], None] = lambda done, size: None,
    ) -> None:
        self.problems: list[str] = []
        """What was changed or is missing, with its place."""
        self.lines = 0
        """Number of the last line."""
        self._folder, self._runs, self._progress = folder, runs, progress
        self._path = folder / "tasks.jsonl"
        self._sha = ""

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of all lines, up to the first problem."""
        stored = self._stored()
        try:
            with open(self._path, "rb") as file:
                yield from self._of_file(file, stored)
        except FileNotFoundError:
            if stored is None and not self._runs:  # a state knows whether there are lines
                self.problems.append(f"{self._path}: no such file: the job has no ledger")
        except OSError as error:
            self.problems.append(f"{self._path}: {error.strerror}: the ledger cannot be read")
        if stored is not None and not self.problems:
            yield from self._of_state(stored)

    def _of_file(self, file: BinaryIO, stored: _Stored | None) -> Iterator[Entry]:
        size, done, told = self._path.stat().st_size, 0, 0
        while not (self._runs and stored is not None and self.lines == stored["count"]):
            raw = file.readline(MOST_BYTES)
            if not raw:
                break
            place = f"{self._path}, line {self.lines + 1}"
            if not raw.endswith(b"\n"):
                if not self._runs:  # else the master is writing the line, or it is in the state
                    self.problems.append(f"{place}: cut: the file ends within the line")
                break
            found = self._next(raw[:-1].decode("utf-8", "replace"), place)
            if found is None:
                break
            for entry in found["entries"]:
                yield self.lines, found["time"], entry
            done += len(raw)
            if done - told >= _STEP_BYTES:
                told = done
                self._progress(done, size)

    def _next(self, line: str, place: str) -> _Line | None:
        """Return the content of the next line, which continues the chain; None after a problem."""
        found, problem = None, "not a line of the ledger"
        sha, text = _SHA.fullmatch(line[-_SHA_CHARACTERS:]), f"{line[:-_SHA_CHARACTERS]}}}"
        own = hashlib.sha256(f"{self._sha}{text}".encode()).hexdigest()[:32]
        with contextlib.suppress(ValueError):
            found = parse(line, _Line)
            if found["n"] != self.lines + 1:
                problem = f"has number {found['n']}: a line was removed, added or moved"
                found = None
            elif sha is None or sha[1] != own:
                problem = "its hash is wrong: this line or the one before was changed"
                found = None
        if found is None:
            self.problems.append(f"{place}: {problem}")
            return None
        self.lines, self._sha = self.lines + 1, own
        return found

    def _of_state(self, stored: _Stored) -> Iterator[Entry]:
        """Compare the file with the state of the last master, and yield the entries of the lines
        that only the state has."""
        count, lines = stored["count"], stored["lines"]
        if self.lines > count:
            self.problems.append(
                f"{self._path}, line {count + 1}: the stored state has {count} lines only: "
                "state.sqlite is older than the file, or of another job"
            )
            return
        if self.lines < count - len(lines):
            text = f"lines {self.lines + 1} to {count - len(lines)} are missing at the end"
            self.problems.append(f"{self._path}: {text}")
            return
        for line in lines[self.lines - count + len(lines) :]:
            found = self._next(line, f"{self._folder / 'state.sqlite'}, line {self.lines + 1}")
            if found is None:
                return
            for entry in found["entries"]:
                yield self.lines, found["time"], entry
        if self._sha != stored["sha"]:
            text = f"line {count} differs from the stored state: one of both was replaced"
            self.problems.append(f"{self._path}: {text}")

    def _stored(self) -> _Stored | None:
        """Return the ledger in the state that a master left; None if it stored nothing yet."""
        path = self._folder / "state.sqlite"
        if not path.exists():
            return None
        try:
            # Not read-only: a master that was killed within a write leaves a journal to roll back.
            connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)
            try:
                known = "SELECT 1 FROM sqlite_master WHERE name = 'entries'"
                if connection.execute(known).fetchone() is None:
                    return None
                row = connection.execute("SELECT value FROM entries WHERE key = 'state'").fetchone()
            finally:
                connection.close()
            if row is None:
                return None
            return parse(row[0], _State, finite=False)["ledger"]
        except (sqlite3.Error, ValueError, TypeError) as error:
            self.problems.append(f"{path}: cannot be read: {error}")
            return None
