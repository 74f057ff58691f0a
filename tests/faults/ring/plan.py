"""Fault plans: what happens to a job, and after which of its steps. Data only, no processes."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass, field
from enum import Enum

ALL = (0, 1, 2, 3)
"""Ranks; those that there are not stand for nobody."""


@dataclass(frozen=True)
class Signal:
    """A signal to members of the ring, at the same moment."""

    ranks: tuple[int, ...]
    number: signal.Signals
    for_s: float = 0.0
    """SIGSTOP: SIGCONT follows after so long; 0: never."""


@dataclass(frozen=True)
class KillMaster:
    """SIGKILL; the node starts it again."""

    ranks: tuple[int, ...] = ()
    """Members that die with it."""


@dataclass(frozen=True)
class Scale:
    """``torch-edl scale``, and the ring has as many members then."""

    workers: int


@dataclass(frozen=True)
class Grown:
    """Wait until the ring has this number of members."""

    workers: int


@dataclass(frozen=True)
class StartNode:
    """The second machine comes."""


@dataclass(frozen=True)
class KillNode:
    """SIGKILL to the node of the second machine; its workers die with it."""


@dataclass(frozen=True)
class KillWorkers:
    """SIGKILL to all workers of the first machine: ranks begin on the second one then."""


@dataclass(frozen=True)
class Cut:
    """The network between the two machines is cut, and mended after ``for_s``."""

    for_s: float


Action = Signal | KillMaster | Scale | Grown | StartNode | KillNode | KillWorkers | Cut


@dataclass(frozen=True)
class At:
    """``do``, so long after a member has begun a step."""

    step: int
    do: Action
    delay_s: float = 0.0


class Phase(Enum):
    """Where a worker dies by its own hand; see counting_script.py."""

    START = "start"
    """Before it is known to anybody."""
    REGISTERED = "registered"
    """The master knows it; it has not asked for a ring."""
    REHEARSAL = "rehearsal"
    """It warms up before it joins."""
    TAKING = "taking"
    """It has taken over the state of another one, and is not in a step yet."""
    GIVING = "giving"
    """It begins to give its state to others, or to a checkpoint."""
    FORWARD = "forward"
    BACKWARD = "backward"
    """Some collectives are under way, some not yet begun."""
    REDUCED = "reduced"
    """The collective is over, the optimizer has not stepped."""
    OPTIMIZER = "optimizer"
    """Between two optimizers of one step."""
    STEPPED = "stepped"
    """The model has the update, and nobody was told."""
    END = "end"
    """All steps are done; it was to say so."""


@dataclass(frozen=True)
class Inside:
    """A worker signals itself, once, in a phase."""

    phase: Phase
    step: int
    """Not before a member has begun it; 0: whenever."""
    rank: int | None = None
    """None: whoever comes there first."""
    number: signal.Signals = signal.SIGKILL
    delay_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One job and what happens to it."""

    workers: int = 3
    """Maximum number of workers on one machine; the job continues with one."""
    machines: int = 1
    """2: two workers on each, the second one in a network of its own."""
    later: bool = False
    """The second machine is not there from the beginning."""
    events: tuple[At, ...] = ()
    deaths: tuple[Inside, ...] = ()
    global_batch: int = 24
    """0: batches of 8 for each member, so updates differ with the ring."""
    checkpoint_every: int = 0
    records: int = 480
    epochs: int = 6

    def __str__(self) -> str:
        parts = [f"{self.workers}x{self.machines}"]
        parts += [f"{e.step}:{_short(e.do)}" for e in self.events]
        parts += [f"{d.step}:{d.phase.value}!{d.number.name}" for d in self.deaths]
        return " ".join(parts)


def _short(action: Action) -> str:
    values = [
        v.name if isinstance(v, signal.Signals) else "".join(map(str, v)) if v == () or
        isinstance(v, tuple) else f"{v:g}"
        for v in vars(action).values()
    ]  # fmt: skip
    return f"{type(action).__name__}({','.join(v for v in values if v)})"


@dataclass
class _Draft:
    events: list[At] = field(default_factory=list)
    deaths: list[Inside] = field(default_factory=list)
    step: int = 4


def random_plan(seed: int) -> Plan:
    """A plan of one to six events; of 30 seeds in a row, each kind of event leads one or more."""
    chance = random.Random(seed)
    lead = _LEADS[seed % len(_LEADS)]
    machines = 2 if lead in _OF_MACHINES else 1
    later = lead == "late"
    draft = _Draft()
    kinds = [lead] + [
        chance.choice(_OF_ALL if machines == 1 else _WITH_MACHINES)
        for _ in range(chance.randint(0, 4))
    ]
    for kind in kinds:
        draft.step += chance.randint(1, 25)
        _add(draft, kind, chance)
    return Plan(
        workers=2 if machines == 2 else chance.choice([2, 3, 4]),
        machines=machines,
        later=later,
        events=tuple(draft.events),
        deaths=tuple(draft.deaths),
        global_batch=chance.choice([24, 24, 0]),
        checkpoint_every=chance.choice([0, 1, 7]),
    )


_LEADS = (
    "phases", "kill", "stop", "pause", "leave", "several", "scale", "master", "all", "but-one",
    "master-too", "joining", "node", "late", "cut",
)  # fmt: skip
_OF_MACHINES = ("node", "late", "cut")
_OF_ALL = ("phases", "kill", "stop", "pause", "leave", "several", "scale", "master", "joining",
           "master-too", "but-one", "all")  # fmt: skip
_WITH_MACHINES = ("phases", "kill", "pause", "leave", "master", "joining")
_IN_STEPS = (Phase.FORWARD, Phase.BACKWARD, Phase.REDUCED, Phase.OPTIMIZER, Phase.STEPPED)
_IN_JOINING = (Phase.START, Phase.REGISTERED, Phase.REHEARSAL, Phase.TAKING, Phase.GIVING)


def _add(draft: _Draft, kind: str, chance: random.Random) -> None:
    step, delay_s = draft.step, chance.uniform(0, 0.06)
    rank = chance.randrange(3)

    def at(action: Action) -> None:
        draft.events.append(At(step, action, delay_s))

    if kind == "phases":
        for offset in range(chance.randint(1, 3)):
            number = chance.choice([signal.SIGKILL] * 4 + [signal.SIGTERM, signal.SIGSTOP])
            delay_ms = chance.choice([0, 0, 1, 5])
            phase = chance.choice(_IN_STEPS)
            draft.deaths.append(Inside(phase, step + 9 * offset, rank, number, delay_ms))
        if chance.random() < 0.5:
            draft.deaths.append(Inside(Phase.END, 0, None))
    elif kind == "joining":
        at(Signal((rank,), signal.SIGKILL))
        for phase in chance.sample(_IN_JOINING, chance.randint(1, 2)):
            first = chance.choice([step, step, 0])
            delay_ms = chance.choice([0, 0, 3])
            draft.deaths.append(Inside(phase, first, None, signal.SIGKILL, delay_ms))
    elif kind == "kill":
        at(Signal((rank,), signal.SIGKILL))
    elif kind == "stop":
        at(Signal((rank,), signal.SIGSTOP))
    elif kind == "pause":
        at(Signal((rank,), signal.SIGSTOP, for_s=chance.uniform(0.2, 1.5)))
    elif kind == "leave":
        at(Signal((rank,), signal.SIGTERM))
    elif kind == "several":
        at(Signal((0, 1), chance.choice([signal.SIGKILL, signal.SIGTERM])))
    elif kind == "but-one":
        spared = chance.randrange(2)
        at(Signal(tuple(r for r in ALL if r != spared), signal.SIGKILL))
    elif kind == "all":
        at(Signal(ALL, signal.SIGKILL))
    elif kind == "scale":
        at(Scale(chance.choice([1, 2])))
        draft.step += chance.randint(1, 10)
        step = draft.step
        at(Scale(3))
    elif kind == "master":
        at(KillMaster())
    elif kind == "master-too":
        at(KillMaster((rank,)))
    elif kind == "node":
        at(KillNode())
    elif kind == "late":
        at(StartNode())
        at(Grown(4))
    elif kind == "cut":
        at(Grown(4))
        if chance.random() < 0.5:
            at(KillWorkers())
            at(Grown(4))
        at(Cut(chance.uniform(5, 8)))
