"""What an event of a job tells, from its text: the kind of the event, and its process. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

LOST, FAULT, MASTER, RING, PREEMPTED = "lost", "fault", "master", "ring", "preempted"
INCIDENTS = frozenset({LOST, "restored", "move", MASTER, "repaired", PREEMPTED})
"""Kinds whose cost the page shows."""
ROUTINE = frozenset({"evaluation", "epoch", "checkpoint"})
"""Kinds of events at level info that come again and again."""


class Mark(NamedTuple):
    """What an event tells."""

    kind: str
    """A key of :data:`_RULES`, or ``other``."""
    process: str = ""
    """Name of the process, such as ``worker-3``; empty if the event concerns none."""
    how: str = ""
    """Cause of a loss, such as ``signal 9``; empty if unknown."""
    again: int = 0
    """Number of records that are trained again."""
    silent_s: float | None = None
    """Seconds of silence after which the loss was declared; None if the exit was seen."""


_NAME = r"(?P<process>(?:worker|ps|spare|agent|master)-\d+)"
_HOW = r"(?P<how>ended[^;]*|was taken away[^;]*|(?:declared )?lost: [^;]*|does not run [^;]*)"
_RULES = {
    "evaluation": r"evaluation at step",  # first, as most events are evaluations
    "epoch": r"epoch [\d,]+ of",
    FAULT: rf"chaos: {_NAME} .*(?:killed|terminated|paused|deleted)",
    "chaos": r"chaos: ",
    "slow": rf"{_NAME} (?:is (?:no longer )?slow|has a slow machine)",
    PREEMPTED: (
        rf"{_NAME} (?:is preempted .*: (?!it returns)|.*, as asked; preempted: |"
        "was taken away: preempted by )"
    ),
    "left": rf"{_NAME} (?:left$|was asked to leave|is preempted|.*, as asked$)",
    LOST: rf"{_NAME} {_HOW}",
    "join": rf"{_NAME} joined|agent .* joined",
    RING: r"ring \d+: \d+ worker|round \d+ of",
    "move": r"the model moves from",
    "repaired": rf"{_NAME} (?:goes on without|lacks) .*",
    MASTER: r"the master was restarted",
    "checkpoint": r"(?:best )?checkpoint|.*(?:checkpoint not written|written to )",
    "scaled": r"workers: \d+ before|servers: \d+ before|parameter servers: ",
    "waiting": r"workers left: |workers that run: |.* waits?: |no \w+ are waiting",
    "end": r"finished$|stopping: ",
    "process": rf"{_NAME}[: ]",
}
_KINDS = {kind: re.compile(rule) for kind, rule in _RULES.items()}
_AGAIN = re.compile(
    r"; the (?:workers?|servers) restarts? from .*?(?:trains? (\d[\d,]*) records|$)"
)
_REPAIRED = re.compile(r"lacks (\d[\d,]*) records?.*trained again")
_LEFT = re.compile(r"; preempted: .* (\d[\d,]*) of its records are trained again")
_SILENT = re.compile(r"no (?:heartbeat|step) for (\d{1,15}(?:\.\d+)?(?:e\+\d\d)?) s")


def read(level: str, text: str) -> Mark:
    """Return what an event tells."""
    line = text.partition("\n")[0][:1000]
    for kind, rule in _KINDS.items():
        found = rule.match(line)
        if found is None or (kind == LOST and level == "info"):
            continue
        named = found.groupdict()
        return Mark(
            kind if not _AGAIN.search(line) else "restored",
            process=named.get("process") or ("master-0" if kind == MASTER else ""),
            how=(named.get("how") or "").removeprefix("ended with ").removeprefix("declared "),
            again=_again(line),
            silent_s=float(silent[1]) if (silent := _SILENT.search(line)) else None,
        )
    return Mark("restored" if _AGAIN.search(line) else "other", again=_again(line))


def _again(line: str) -> int:
    if "again" not in line and "restart" not in line:
        return 0
    for rule in (_AGAIN, _REPAIRED, _LEFT):
        if (found := rule.search(line)) and found[1]:
            return int(found[1].replace(",", ""))
    return 0
