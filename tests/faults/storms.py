"""Storms: a job and the faults that it must survive without a record lost or repeated, as data.

A storm is a function of its seed. The faults are a plan of ``torch-edl chaos``, which chooses the
processes; the scaling is the test's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_QUORUM = 3


@dataclass(frozen=True, kw_only=True)
class Storm:
    """One job and what happens to it."""

    kind: str
    flags: Sequence[str]
    """Options of ``torch-edl run``."""
    quorum: int
    """Pushes that a server applies together; 1 unless the mode is sync."""
    plan: str
    """TOML for ``torch-edl chaos --plan``."""
    scales: Sequence[tuple[float, str, int]]
    """Seconds after the start, and the option and number for ``torch-edl scale``."""


def storm(seed: int, kind: str, durability: str, for_s: float) -> Storm:
    """The storm of a seed.

    Args:
        kind: ``workers``, ``servers``, ``masters``: who is killed; ``mixed``: all of them;
            ``together``: several at the same moment; ``again``: a successor while it recovers;
            ``scaling``: all of them, while numbers of workers and servers change; without a log of
            the servers, workers only.
        durability: of the servers.
        for_s: how long it lasts.
    """
    chance = random.Random(seed)
    least = 2 if durability == "replica" else 1
    servers, workers = chance.randint(least, 5), 3
    flags = ["--workers", str(workers), "--ps", str(servers), "--seed", str(seed)]
    flags += ["--batch-size", "8", "--records-per-task", "64"]
    flags += ["--wire-dtype", ("fp32", "bf16", "fp16")[seed // 3 % 3]]
    flags += ["--storage-dtype", ("fp32", "int8", "bf16")[seed // 2 % 3]]
    if durability != "checkpoint":
        flags += ["--durability", durability]
    quorum = 1
    match chance.choice(["strict", "async", "stale", "local", "sync"]):
        case "strict":
            flags += ["--staleness", "0"]
        case "async":
            flags += ["--staleness", "1"]
        case "stale":
            flags += ["--staleness", "3"]
        case "local":
            flags += ["--local-steps", str(chance.choice([2, 4])), "--staleness", "1"]
        case "sync":
            quorum = _QUORUM
            flags += ["--mode", "sync", "--grads-to-wait", str(quorum), "--staleness", "2"]
    scales = []
    if kind == "scaling":
        scales = [
            (0.2 * for_s, "--workers", chance.choice([1, 2, 5])),
            (0.3 * for_s, "--ps", chance.randint(least, 5)),
            (0.6 * for_s, "--workers", workers),
            (0.7 * for_s, "--ps", chance.randint(least, 5)),
        ]
    killed = "workers" if durability == "checkpoint" else kind
    return Storm(
        kind=kind,
        flags=flags,
        quorum=quorum,
        plan="\n".join([f"seed = {seed}", f'for = "{for_s:g}s"', *_faults(killed, chance, for_s)]),
        scales=scales,
    )


def _faults(kind: str, chance: random.Random, for_s: float) -> list[str]:
    def fault(what: str, when: str) -> str:
        return f"[[fault]]\n{what}\n{when}"

    def at(least: float, most: float) -> str:  # parts of the time
        return f'at = "{chance.uniform(least, most) * for_s:.2f}s"'

    match kind:
        case "workers":
            term = '\nsignal = "TERM"' if chance.random() < 0.3 else ""
            return [
                fault('kill = "worker=1"' + term, 'every = "2500ms"'),
                fault('pause = "worker=1:1500ms"', 'every = "5s"'),
            ]
        case "servers":
            return [
                fault('kill = "ps=1"', 'every = "2500ms"'),
                fault('pause = "ps=1:1s"', at(0.3, 0.8)),
            ]
        case "masters":
            return [
                fault('kill = "master=1"', 'every = "3s"'),
                fault('pause = "master=1:1s"', at(0.3, 0.8)),
            ]
        case "together":
            pairs = ["worker=1,ps=1", "worker=2,ps=1", "worker=3", "ps=2", "ps=5"]
            pairs += ["master=1,ps=1", "master=1,worker=1", "master=1,worker=3,ps=5"]
            first, second, third = chance.sample(pairs, 3)
            return [
                fault(f'kill = "{first}"', at(0.05, 0.25)),
                fault(f'kill = "{second}"', at(0.4, 0.55)),
                fault(f'kill = "{third}"', at(0.7, 0.9)),
            ]
        case "again":
            # A successor takes a second or so until it serves.
            faults = []
            for begin in (0.1 * for_s, 0.5 * for_s):
                role = chance.choice(["ps", "ps", "worker", "master"])
                first = begin + chance.random()
                for later in (0.0, chance.uniform(0.1, 0.6), chance.uniform(0.7, 1.6)):
                    faults.append(fault(f'kill = "{role}=1"', f'at = "{first + later:.2f}s"'))
            return faults
        case _:
            return [
                fault('kill = "worker=1"', 'every = "4s"'),
                fault('kill = "ps=1"', 'every = "4s"'),
                fault('kill = "master=1"', at(0.4, 0.8)),
            ]
