"""A job of the counting script as a user starts it, a hand that carries out a plan, and checks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pytest

from tests.faults.conftest import Job, send
from tests.faults.ring.network import Network
from tests.faults.ring.plan import (
    At,
    Cut,
    Grown,
    KillMaster,
    KillNode,
    KillWorkers,
    Phase,
    Plan,
    Scale,
    Signal,
    StartNode,
)
from tests.place import EDL
from tests.waiting import HANG_S
from torch_edl.wire.endpoint import free_port

SCRIPT = Path(__file__).parents[1] / "counting_script.py"
HEARTBEAT_TIMEOUT_S = 3.0
_DELAY_S = 0.03
_POLL_S = 0.01
_STEP_S = 120.0
_JOIN_S = 100.0


@dataclass(frozen=True)
class Batch:
    """The last report of a worker."""

    pid: int
    rank: int
    world: int
    step: int
    when: float
    """Unix time at which it began it."""


class PlannedJob(Job):
    """One plan, carried out."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.told = folder / "told"
        self.told.mkdir()
        self.done: list[At] = []
        self._hurt: set[int] = set()
        self._scaled = False
        self._listens: set[str] = set()
        self._cuts: list[tuple[float, float, set[int]]] = []
        self._network = Network() if plan.machines == 2 else None
        self._second_log = folder / "second.log"
        self._command = self._words_of_nodes(folder / "checkpoints")
        deaths = [
            {**asdict(d), "phase": d.phase.value, "number": None, "signal": int(d.number)}
            for d in plan.deaths
        ]
        (self.told / "deaths.json").write_text(json.dumps(deaths))
        token = "the token of this test, shared by both machines"
        super().__init__(folder, "ring", self._command, str(SCRIPT), TORCH_EDL_TOKEN=token)
        self.nodes = [self.process]
        if plan.machines == 2 and not plan.later:
            self._start_second_node()

    def _words_of_nodes(self, checkpoints: Path) -> list[str]:
        plan = self.plan
        words = [*EDL, "run", "--job-name", "ring"]
        words += ["--heartbeat-timeout", f"{HEARTBEAT_TIMEOUT_S:g}"]
        if self._network is None:
            words += ["--workers", f"1:{plan.workers}"]
        else:
            here = self._network.here
            words += ["--nnodes", "1:2", "--nproc-per-node", str(plan.workers)]
            words += ["--rdzv-endpoint", f"{here}:{free_port()}"]
        if plan.checkpoint_every:
            words += ["--checkpoint-dir", str(checkpoints)]
            words += ["--checkpoint-every", str(plan.checkpoint_every)]
        words += [str(SCRIPT), str(self.told), "--records", str(plan.records)]
        words += ["--epochs", str(plan.epochs), "--delay", str(_DELAY_S)]
        return [*words, "--global-batch", str(plan.global_batch)]

    def _start_second_node(self) -> None:
        assert self._network is not None
        words = self._network.command(self._command)
        with open(self._second_log, "w") as log:
            self.nodes.append(subprocess.Popen(words, env=self.env, stdout=log, stderr=log))

    # ---- what is to be seen ----

    def batches(self) -> list[Batch]:
        """The last one of each worker that ever trained."""
        found = []
        for file in self.told.glob("steps-*"):
            with open(file, "rb") as lines:
                lines.seek(max(0, os.fstat(lines.fileno()).st_size - 100))
                whole = lines.read().split(b"\n")[:-1]
            if whole:
                *numbers, when = whole[-1].split()
                found.append(Batch(_number_of(file), *map(int, numbers), float(when)))
        return found

    def members(self) -> dict[int, Batch]:
        """Those of the newest ring that live, by rank."""
        living = [b for b in self.batches() if psutil.pid_exists(b.pid)]
        living.sort(key=lambda each: each.when)
        return {each.rank: each for each in living}

    def step(self) -> int:
        """The newest that anybody has begun."""
        return max((b.step for b in self.members().values()), default=-1)

    def over(self) -> bool:
        return self.nodes[0].poll() is not None

    def comes(self, condition: Callable[[], object], timeout_s: float, what: str) -> bool:
        """Return whether the condition was met before the job was over."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.over():
                return False
            if time.monotonic() > deadline:
                pytest.fail(f"in vain for {timeout_s:g} s: {what}\n{self.report()}")
            time.sleep(_POLL_S)
        return True

    def report(self) -> str:
        """The plan, the logs, and the state of the processes."""
        parts = [str(self.plan), super().report()]
        for file in (self._second_log, *sorted(self.told.glob("log-*"))):
            if file.exists():
                parts.append(f"==== {file.name}\n{file.read_text(errors='replace')[-2500:]}")
        parts.append(f"==== alive\n{self.processes()}\n==== last\n{self.batches()}")
        return "\n".join(parts)

    # ---- what happens ----

    def carry_out(self) -> None:
        """All events, each when its step has come; those are left out that the job's end outran."""
        for event in self.plan.events:
            if not self.comes(lambda e=event: self.step() >= e.step, _STEP_S, f"step {event.step}"):
                return
            time.sleep(event.delay_s)  # the moment in the step: part of the plan
            if self.over():
                return
            self._look_at_sockets()
            self._do(event)
            self.done.append(event)

    def _look_at_sockets(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in psutil.Process(pid).net_connections(kind="inet"):
                    if one.status == psutil.CONN_LISTEN:
                        self._listens.add(one.laddr.ip.removeprefix("::ffff:"))

    def _do(self, event: At) -> None:
        action = event.do
        if isinstance(action, Signal):
            self._signal(action)
        elif isinstance(action, KillMaster):
            self._hurt |= set(self._send_ranks(action.ranks, signal.SIGKILL))
            for pid in self.pids("master"):
                send(pid, signal.SIGKILL)
        elif isinstance(action, Scale):
            self._scale(action.workers)
        elif isinstance(action, Grown):
            self._wait_for_world(action.workers)
        elif isinstance(action, StartNode):
            self._start_second_node()
        elif isinstance(action, KillNode):
            self._hurt |= self._workers_of(1)
            self.nodes[1].kill()
        elif isinstance(action, KillWorkers):
            for pid in self._workers_of(0):
                self._hurt.add(pid)
                send(pid, signal.SIGKILL)
        else:
            self._cut(action)

    def _signal(self, action: Signal) -> None:
        if not action.for_s:
            self._hurt |= set(self._send_ranks(action.ranks, action.number))
            return
        stopped = self._send_ranks(action.ranks, action.number)
        time.sleep(action.for_s)  # as long as the plan says
        for pid in stopped:
            send(pid, signal.SIGCONT)

    def _send_ranks(self, ranks: tuple[int, ...], number: signal.Signals) -> list[int]:
        members = self.members()
        pids = [members[rank].pid for rank in ranks if rank in members]
        if ranks and not pids and members:
            pids = [members[max(members)].pid]
        for pid in pids:
            send(pid, number)
        return pids

    def _scale(self, workers: int) -> None:
        self._scaled = True
        (self.told / "slow").touch()  # the job must not end while the command starts
        subprocess.run(
            [*EDL, "scale", "ring", "--workers", str(workers)],
            env=self.env, check=not self.over(), timeout=HANG_S,
        )  # fmt: skip
        self._wait_for_world(workers)

    def _wait_for_world(self, workers: int) -> None:
        slow = self.told / "slow"
        slow.touch()

        def is_there() -> bool:
            members = self.members().values()
            newest = max(members, key=lambda each: each.when, default=None)
            return newest is not None and newest.world == workers

        self.comes(is_there, _JOIN_S, f"{workers} members")
        slow.unlink()

    def _cut(self, action: Cut) -> None:
        assert self._network is not None
        there = self._workers_of(1)
        self._hurt |= there
        self._network.cut()
        since = time.time()
        time.sleep(action.for_s)  # as long as the plan says
        self._cuts.append((since, time.time(), there))
        self._network.mend()

    def _workers_of(self, machine: int) -> set[int]:
        """Pids of the workers of a machine."""
        children = psutil.Process(self.nodes[machine].pid).children(recursive=True)
        workers = {p for p, line in self.processes().items() if EDL[-1] not in line}
        return workers.intersection(self.pids("worker"), (child.pid for child in children))

    # ---- what must be so ----

    def check(self, timeout_s: float) -> None:
        """Waits for the end of all nodes, and checks everything."""
        deadline = time.monotonic() + timeout_s
        for number, node in enumerate(self.nodes):
            try:
                code = node.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"node {number} still runs after {timeout_s:g} s\n{self.report()}")
            killed = number and any(isinstance(e.do, KillNode) for e in self.done)
            if code != (-signal.SIGKILL if killed else 0):
                pytest.fail(f"node {number} ended with {code}\n{self.report()}")
        try:
            self._check_all()
        except AssertionError as error:
            pytest.fail(f"{error}\n{self.report()}")

    def _check_all(self) -> None:
        plan = self.plan
        hits = list(self.told.glob("hit-*"))
        hit = {_number_of(file) for file in hits}
        self._hurt |= {int(file.read_text()) for file in hits}
        ends = [json.loads(file.read_text()) for file in self.told.glob("counts-*.json")]
        assert ends, "no worker came to the end of its script"
        for end in ends:
            assert not end["wrong"], f"records not counted {plan.epochs} times: {end}"
            assert all(abs(u - end["step"]) < 1e-3 for u in end["updates"]), end
            if plan.global_batch:
                assert end["step"] == plan.epochs * plan.records // plan.global_batch
        assert len({end["digest"] for end in ends}) == 1, ends
        if self._network is None and self.done:
            assert self._listens == {"127.0.0.1"}, "one machine is open to others"
        # Who dies when all is trained takes with it what its script was still to do.
        died_late = {n for n, d in enumerate(plan.deaths) if d.phase is Phase.END} & hit
        assert (self.told / "model.pt").exists() or died_late, "nobody was rank 0 at the end"
        assert hit or self.done or not (plan.events or plan.deaths), "nothing happened"
        self._check_survivors({end["pid"] for end in ends})
        rings = self.rings()
        for number, seats in rings.items():
            ranks = [rank for _, rank, _, _ in seats]
            assert len(ranks) == len(set(ranks)), f"ring {number}: a rank twice: {seats}"
            assert len({(world, step) for _, _, world, step in seats}) == 1, (number, seats)
        for since, until, there in self._cuts:
            for pid in there:
                # What the master had agreed to just before may still be under way.
                wrote = [w for w, _ in self._written(pid) if since + 0.5 < w < until]
                assert not wrote, f"pid {pid} wrote a checkpoint while it was cut off: {wrote}"
                trained = [w for w in self._begun(pid) if since + HEARTBEAT_TIMEOUT_S < w < until]
                assert not trained, f"pid {pid} trained while others may: {trained}"

    def _check_survivors(self, ended: set[int]) -> None:
        """Who trained and was not hurt came to the end, in the same process."""
        trained = {b.pid for b in self.batches()}
        lost = trained - ended - self._hurt
        if self._scaled:  # who had to leave is the job's choice
            lost = {p for p in lost if "leaving" not in (self.told / f"log-{p}").read_text()}
        assert not lost, f"pids {sorted(lost)} were not hurt, and did not come to the end"

    def rings(self) -> dict[int, list[tuple[int, int, int, int]]]:
        """Ring to (pid, rank, size, step) of all that say that they were in it."""
        found = defaultdict(list)
        for file in self.told.glob("log-*"):
            before = 0
            for match in re.finditer(
                r"^\S+ ring (\d+): rank (\d+) of (\d+), step (\d+)$", file.read_text(), re.M
            ):
                ring, rank, world, step = map(int, match.groups())
                assert ring > before, f"{file.name}: ring {ring} after ring {before}"
                before = ring
                found[ring].append((_number_of(file), rank, world, step))
        return found

    def _written(self, pid: int) -> Iterator[tuple[float, str]]:
        log = self.told / f"log-{pid}"
        if log.exists():
            for match in re.finditer(r"^(\S+) checkpoint (/\S+)$", log.read_text(), re.M):
                yield float(match[1]), match[2]

    def _begun(self, pid: int) -> list[float]:
        """When it began its batches."""
        file = self.told / f"steps-{pid}"
        lines = file.read_text().splitlines() if file.exists() else []
        return [float(line.split()[3]) for line in lines]

    def close(self) -> None:
        """Nothing outlives its job, whatever the test did to it."""
        try:
            for node in self.nodes[1:]:
                node.kill()
                node.wait()
            super().close()
        finally:
            if self._network is not None:
                self._network.close()


def _number_of(file: Path) -> int:
    return int(file.name.split("-")[1])
