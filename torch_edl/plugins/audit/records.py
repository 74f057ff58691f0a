"""The lines of ``tasks.jsonl``: reading, the chain of hashes, and the stored state. No writing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_edl.plugins.audit.ledger import line_of


@dataclass
class Records:
    """What a folder holds of the ledger."""

    entries: list[tuple[int, float, list[Any]]] = field(default_factory=list)
    """Number of the line, Unix time, and the entry."""
    problems: list[str] = field(default_factory=list)
    """What was changed or is missing, with its place."""
    lines: int = 0
    """Number of the last line."""


def read(folder: Path, *, tries: int = 1) -> Records:
    """Read the ledger of a job's folder, with lines that only the stored state has.

    Args:
        tries: number of times that it is read until there is no problem. Above 1 for a running job,
            whose master may write between two reads.
    """
    runs = tries > 1
    found = _read(folder, runs=runs)
    while found.problems and (tries := tries - 1) > 0:
        found = _read(folder, runs=runs)
    return found


def _read(folder: Path, *, runs: bool) -> Records:
    path, found, text, exists = folder / "tasks.jsonl", Records(), "", True
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        exists = False
    except OSError as error:
        found.problems.append(f"{path}: {error.strerror}: the ledger cannot be read")
    lines = text.split("\n")
    if lines[-1]:
        place = f"{path}, line {len(lines)}"
        found.problems.append(f"{place}: cut: the file ends within the line")
    stored = _stored(folder, found.problems)
    if not (exists or stored or runs):  # a state knows whether there are lines
        found.problems.append(f"{path}: no such file: the job has no ledger")
    hashes = _chain(path, lines[:-1], found)
    if stored is not None:
        _compare(path, stored, hashes, found)
    return found


def _chain(path: Path, lines: Sequence[str], found: Records) -> list[str]:
    before, hashes = "", [""]
    for number, line in enumerate(lines, 1):
        place = f"{path}, line {number}"
        try:
            raw = json.loads(line)
            again, sha = line_of(raw["n"], raw["time"], raw["entries"], before)
        except (ValueError, TypeError, KeyError):
            found.problems.append(f"{place}: not a line of the ledger")
            break
        if raw["n"] != number:
            text = f"has number {raw['n']}: a line was removed, added or moved"
            found.problems.append(f"{place}: {text}")
            break
        if again != line:
            text = "its hash is wrong: this line or the one before was changed"
            found.problems.append(f"{place}: {text}")
            break
        before, found.lines = sha, number
        hashes.append(sha)
        found.entries += [(number, raw["time"], entry) for entry in raw["entries"]]
    return hashes


def _compare(path: Path, stored: dict[str, Any], hashes: list[str], found: Records) -> None:
    """Compare the file with the state of the last master, and add lines that only the state has."""
    count, lines = stored["count"], stored["lines"]
    if found.problems:
        return
    if found.lines > count:
        found.problems.append(
            f"{path}, line {count + 1}: the stored state has {count} lines only: state.sqlite is "
            "older than the file, or of another job"
        )
        return
    missing = [json.loads(line) for line in lines]
    missing = [raw for raw in missing if raw["n"] > found.lines]
    if count - len(missing) != found.lines:
        text = f"lines {found.lines + 1} to {count - len(missing)} are missing at the end"
        found.problems.append(f"{path}: {text}")
        return
    before = hashes[-1]
    for raw in missing:
        before = line_of(raw["n"], raw["time"], raw["entries"], before)[1]
        found.entries += [(raw["n"], raw["time"], entry) for entry in raw["entries"]]
        found.lines = raw["n"]
    if before != stored["sha"]:
        text = f"line {count} differs from the stored state: one of both was replaced"
        found.problems.append(f"{path}: {text}")


def _stored(folder: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return the ledger in the state that a master left; None if there is no state."""
    path = folder / "state.sqlite"
    if not path.exists():
        return None
    try:
        # Not read-only: the journal of a write that a crash cut off must be rolled back first.
        connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)
        try:
            row = connection.execute("SELECT value FROM entries WHERE key = 'state'").fetchone()
        finally:
            connection.close()
        if row is None:
            return None
        ledger = json.loads(row[0])["ledger"]
        return {"count": int(ledger["count"]), "sha": str(ledger["sha"]), "lines": ledger["lines"]}
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
        problems.append(f"{path}: cannot be read: {error}")
        return None
