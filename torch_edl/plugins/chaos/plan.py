"""The faults of a storm, from the command line or from a TOML file. Pure except for the file."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_edl.errors import UsageError

ROLES = ("worker", "ps", "master")
SIGNALS = ("KILL", "TERM")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MOST = 1000
_KEYS = {"kill", "pause", "signal", "every", "at"}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kill or a pause of processes of one role, at random times in each round or once."""

    role: str
    """One of :data:`ROLES`."""
    count: int = 1
    """Number of processes to strike."""
    signal: str = "KILL"
    """Signal that kills the processes, one of :data:`SIGNALS`."""
    pause_s: float = 0.0
    """Seconds between SIGSTOP and SIGCONT; 0: the processes are killed."""
    every_s: float = 0.0
    """Length of a round, seconds; 0: the fault happens once, at ``at_s``."""
    at_s: float = 0.0
    """Seconds from the start at which a fault that happens once strikes all its processes."""


@dataclass(frozen=True, kw_only=True)
class StormPlan:
    """The faults of a storm."""

    faults: tuple[Fault, ...]
    for_s: float
    """Length of the storm, seconds."""
    seed: int = 0

    def roles(self, *, killed: bool) -> dict[str, int]:
        """Return the roles that are killed or paused, with the largest number of processes at a
        time.

        Args:
            killed: True for the roles that are killed; False for those that are paused.
        """
        found: dict[str, int] = {}
        for fault in self.faults:
            if killed == (not fault.pause_s):
                found[fault.role] = found.get(fault.role, 0) + fault.count
        return found


def duration(text: str, option: str) -> float:
    """Return the seconds of ``500ms``, ``3s``, ``2m`` or ``1h``; a number alone is in seconds.

    Raises:
        UsageError: the text is no duration above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h)?", text.strip())
    value = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if not 0 < value <= 1e6:
        raise UsageError(f"{option} {text}: not a duration; write 500ms, 3s or 2m")
    return value


def faults(
    *,
    kill: str = "",
    pause: str = "",
    signal: str = "KILL",
    every_s: float = 0.0,
    at_s: float = 0.0,
    named: str = "--{}",
) -> tuple[Fault, ...]:
    """Return the faults that ``kill`` (``worker=2,ps=1``) and ``pause`` (``worker=1:5s``)
    describe.

    Args:
        named: format of the names ``kill`` and ``pause`` in messages.

    Raises:
        UsageError: an unknown role, or an invalid number or duration.
    """
    found = []
    as_kill, as_pause = named.format("kill"), named.format("pause")
    for role, value in _words(kill, as_kill):
        count = _count(value, as_kill, role)
        found.append(Fault(role=role, count=count, signal=signal, every_s=every_s, at_s=at_s))
    for role, value in _words(pause, as_pause):
        number, colon, long = value.partition(":")
        if not colon:
            raise UsageError(f"{as_pause} {role}={value}: for how long? write {role}={value}:5s")
        pause_s = duration(long, f"{as_pause} {role}={number}:")
        count = _count(number, as_pause, role)
        found.append(Fault(role=role, count=count, pause_s=pause_s, every_s=every_s, at_s=at_s))
    return tuple(found)


def read(path: Path, *, seed: int | None, for_s: float | None) -> StormPlan:
    """Return the plan in a TOML file.

    Args:
        seed: seed that replaces the one in the file; None: that of the file.
        for_s: length in seconds that replaces the one in the file; None: that of the file.

    Raises:
        UsageError: the file cannot be read, or contains no valid plan.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = (error.strerror or "") if isinstance(error, OSError) else str(error)
        raise UsageError(f"--plan {path}: {reason}") from error
    try:
        return _plan(content, seed=seed, for_s=for_s)
    except UsageError as error:
        raise UsageError(f"--plan {path}: {error}") from error


def _plan(content: Mapping[str, Any], *, seed: int | None, for_s: float | None) -> StormPlan:
    _known(content, {"seed", "for", "fault"}, "the plan")
    entries = content.get("fault", [])
    if not isinstance(entries, list) or not entries:
        raise UsageError(
            'no fault; write [[fault]], and below it kill = "worker=1" and every = "3s"'
        )
    found: list[Fault] = []
    for number, entry in enumerate(entries, 1):
        try:
            found += _faults(entry)
        except UsageError as error:
            raise UsageError(f"fault {number}: {error}") from error
    own = content.get("seed", 0)
    if not isinstance(own, int):
        raise UsageError(f"seed = {own!r}: expected a whole number")
    if for_s is None:
        last = max(fault.at_s for fault in found)
        rounds = any(fault.every_s for fault in found)
        if rounds and "for" not in content:
            raise UsageError('for: missing; say how long the rounds last, such as for = "60s"')
        for_s = duration(_text(content, "for"), "for =") if "for" in content else last
    return StormPlan(faults=tuple(found), for_s=for_s, seed=own if seed is None else seed)


def _faults(entry: Any) -> tuple[Fault, ...]:
    """Return the faults of one entry of a plan."""
    if not isinstance(entry, dict):
        raise UsageError(f"fault = {entry!r}: write [[fault]]")
    _known(entry, _KEYS, "a fault")
    words = {key: _text(entry, key) for key in _KEYS}
    if bool(words["every"]) == bool(words["at"]):
        raise UsageError('it needs either every = "3s" or at = "10s"')
    signal = words["signal"] or "KILL"
    if signal not in SIGNALS:
        raise UsageError(f"signal = {signal!r}: choose from {', '.join(SIGNALS)}")
    made = faults(
        kill=words["kill"],
        pause=words["pause"],
        signal=signal,
        every_s=duration(words["every"], "every =") if words["every"] else 0.0,
        at_s=duration(words["at"], "at =") if words["at"] else 0.0,
        named="{} =",
    )
    if not made:
        raise UsageError('it needs kill = "worker=1" or pause = "worker=1:5s"')
    return made


def _known(given: Mapping[str, Any], known: set[str], what: str) -> None:
    for key in given:
        if key not in known:
            raise UsageError(f"{key}: no such key of {what}; it has {', '.join(sorted(known))}")


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key, "")
    if not isinstance(value, str):
        raise UsageError(f'{key} = {value!r}: expected a text, such as {key} = "3s"')
    return value


def _words(text: str, option: str) -> Sequence[tuple[str, str]]:
    found = []
    for word in filter(None, (each.strip() for each in text.split(","))):
        role, equals, value = word.partition("=")
        if role not in ROLES:
            raise UsageError(f"{option} {word}: no such role; choose from {', '.join(ROLES)}")
        found.append((role, value if equals else "1"))
    return found


def _count(text: str, option: str, role: str) -> int:
    if not re.fullmatch(r"\d{1,4}", text) or not 1 <= int(text) <= _MOST:
        raise UsageError(f"{option} {role}={text}: how many? write {role}=1")
    return int(text)
