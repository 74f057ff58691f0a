"""Runs a storm over a job: sends signals, polls the status, and adds events to the job."""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from torch_edl.config import JobConfig
from torch_edl.errors import EdlError, UsageError
from torch_edl.events import ChaosBegan, ChaosEnded, ChaosSettling, Event, FaultInjected
from torch_edl.launch.jobs.folder import ENDED
from torch_edl.plugins.chaos.plan import StormPlan
from torch_edl.plugins.chaos.site import EXITED, Site
from torch_edl.plugins.chaos.storm import Blow, Storm, Target
from torch_edl.plugins.chaos.verdict import StatusWatch, StormVerdict
from torch_edl.wire import event_messages
from torch_edl.wire import master_pb2 as pb

_LOOK_S = 0.25
# Seconds that a job has to make progress after the last fault.
_SETTLE_S = 60.0


def risks(plan: StormPlan, config: JobConfig, status: pb.GetStatusResponse) -> Sequence[str]:
    """Return what the plan will cost, one sentence per risk; empty if no progress can be lost."""
    found = []
    killed = plan.roles(killed=True)
    everything = killed | plan.roles(killed=False)
    newest = f"a checkpoint ({status.checkpoint} or newer)"
    point = newest if status.checkpoint else "the beginning, or from the first checkpoint"
    if "ps" in killed and config.durability.mode == "checkpoint":
        found.append(
            "--durability checkpoint: each kill of a server restores all servers from "
            f"{point}, and later records are trained again; --durability journal loses "
            "nothing"
        )
    if "worker" in killed and status.strategy == "local":
        found.append(
            "--strategy local: the one worker holds the model; each kill restores it from "
            f"{point}, and later records are trained again"
        )
    workers = sum(p.role == "worker" and p.state != "exited" for p in status.processes)
    if status.strategy == "allreduce" and everything.get("worker", -1) >= workers:
        found.append(
            f"--strategy allreduce: the workers hold the model; if all {workers} die together, "
            f"training continues from {point}"
        )
    return found


def restraint(plan: StormPlan, config: JobConfig) -> str:
    """Return which faults wait until the job can survive them, as a sentence; empty if none
    does."""
    if config.durability.mode != "replica":
        return ""
    if not (plan.roles(killed=True) | plan.roles(killed=False)).get("ps"):
        return ""
    return (
        "--durability replica: a server and the one with its copy must not die together; a server "
        "is struck only while no other server needs it"
    )


_FAULTS: Mapping[int, Literal["killed", "terminated", "continued"]] = {
    signal.SIGKILL: "killed",
    signal.SIGTERM: "terminated",
    signal.SIGCONT: "continued",
}


class Chaos:
    """One run of ``torch-edl chaos``. It ends by itself, or soon after :meth:`stop`.

    Args:
        site: site of a running job.
        line: shows an action, after the seconds from the start to the action.
        progress: shows the progress of the storm and of the job, after the seconds since the start
            and the length of the storm.

    Raises:
        UsageError: the job is over, or has no process that the plan could strike; no fault was
            injected.
    """

    def __init__(
        self,
        site: Site,
        plan: StormPlan,
        *,
        line: Callable[[float, str], None],
        progress: Callable[[float, float, str], None],
    ) -> None:
        self._site, self._plan, self._line, self._progress = site, plan, line, progress
        status: pb.GetStatusResponse = site.ask(pb.GetStatusRequest())
        if status.state in ENDED:
            raise UsageError(f"{status.job}: the job is over, it is {status.state}")
        config = site.config()
        self.risks = risks(plan, config, status)
        """What the plan will cost, one sentence per risk; empty if no progress can be lost."""
        self._check_roles(status, site.living(status.processes))
        self.elsewhere = site.out_of_reach(status.processes)
        """Number of processes on other machines, which are spared."""
        self.restraint = restraint(plan, config)
        """Sentence that says which faults wait until the job can survive them; empty if none
        does."""
        self._storm = Storm(plan)
        self._seen: set[int] = set()  # ids of servers that were seen running
        self._began = time.monotonic()
        self.watch = StatusWatch(
            status, self._began, seed=plan.seed, may_roll_back=bool(self.risks)
        )
        self._events = _Events(site)
        self._lock = threading.Lock()  # guards the watch, which the status thread feeds
        self._stopped, self._over = threading.Event(), threading.Event()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def stop(self) -> None:
        """Stop injecting faults, and continue paused processes. Safe in a signal handler."""
        self._stopped.set()

    def run(self, *, wait: bool) -> StormVerdict:
        """Run the storm, and return the verdict.

        Args:
            wait: True: the verdict waits for the end of the job.
        """
        looking = threading.Thread(target=self._look, name="status", daemon=True)
        self._events.add(ChaosBegan(seconds=self._plan.for_s, seed=self._plan.seed))
        looking.start()
        try:
            while not self._storm.over and not self._stopped.is_set() and not self._is_over():
                living = self._living()
                self._strike(self._storm.due(self.seconds, living, self._expendable(living)))
                pause = min(max(self._storm.next_s() - self.seconds, 0.01), _LOOK_S)
                self._show()
                self._stopped.wait(pause)
        finally:
            self._strike(self._storm.stop())
        self._settle(wait=wait)
        verdict = self._verdict()
        ended = ChaosEnded(
            killed=self.watch.counts(),
            verdict="; ".join(verdict.problems) or verdict.text,
            held=not verdict.problems,
        )
        self._events.add(ended)
        self._over.set()
        looking.join()
        return verdict

    # ---- faults ----

    def _living(self) -> list[Target]:
        return self._site.living(self.watch.last.processes)

    def _expendable(self, living: Sequence[Target]) -> Sequence[Target] | None:
        """Return the servers of which one may be lost; None if any number may be lost at once."""
        if not self.restraint:
            return None
        listed = [p for p in self.watch.last.processes if p.role == "ps" and p.state != EXITED]
        servers = {target.id: target for target in living if target.role == "ps"}
        self._seen |= servers.keys()
        # The status is older than the death of a server that it lists but that no longer runs.
        if any(p.id in self._seen and p.id not in servers for p in listed):
            return []
        return [servers[p.id] for p in listed if p.expendable and p.id in servers]

    def _strike(self, blows: list[Blow]) -> None:
        for blow in blows:
            if not self._site.strike(blow):
                continue  # the process has just ended
            fault = FaultInjected(
                process=str(blow.target),
                place=blow.target.place,
                fault="paused" if blow.pause_s else _FAULTS[blow.number],
                pause_s=blow.pause_s,
            )
            if blow.number != signal.SIGCONT:
                with self._lock:
                    self.watch.struck(blow, time.monotonic())
            self._line(self.seconds, fault.what)
            self._events.add(fault)

    # ---- the job ----

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            asked = time.monotonic()
            status = self._status()
            with self._lock:
                self.watch.saw(status, asked)
            if status is not None:
                self._events.deliver()
        self._events.deliver()

    def _status(self) -> pb.GetStatusResponse | None:
        try:
            status: pb.GetStatusResponse = self._site.ask(pb.GetStatusRequest())
        except EdlError:  # no master answers
            return None
        return status

    def _settle(self, *, wait: bool) -> None:
        """Wait until the job has made progress after the last fault, or has ended."""
        if not self._stopped.is_set() and not self._is_over():
            self._line(self.seconds, "the last fault is over; waiting for progress")
            self._events.add(ChaosSettling())
        until = time.monotonic() + _SETTLE_S
        while not self._stopped.is_set() and not self._is_over():
            # A job that fails ends soon, and only its final state tells how.
            last = self.watch.last
            left_out = last.state == "finishing" and last.records.done < last.records.total
            progressed = self.watch.progressed and not last.error and not left_out
            settled = progressed or time.monotonic() >= until
            if settled and not (wait and self.watch.progressed):
                return
            self._show()
            self._stopped.wait(_LOOK_S)

    def _show(self) -> None:
        last, (times, records) = self.watch.last, self.watch.rolled_back()
        back = f"{records:,} records" if times else "none"
        text = (
            f"killed: {self.watch.counts()}  records: {last.records.done:,} of "
            f"{last.records.total:,}  rolled back: {back}"
        )
        self._progress(self.seconds, self._plan.for_s, text)

    def _is_over(self) -> bool:
        return self.watch.last.state in ENDED or not self._site.has_master()

    def _verdict(self) -> StormVerdict:
        state, error = self.watch.last.state, self.watch.last.error
        if not self._site.has_master():
            state, error = self._site.end()
        with self._lock:
            return self.watch.verdict(
                time.monotonic(),
                state=state,
                error=error.partition("\n")[0],
                missed=self._storm.missed,
                is_cut=self._stopped.is_set(),
            )

    def _check_roles(self, status: pb.GetStatusResponse, living: Sequence[Target]) -> None:
        roles = {target.role for target in living}
        has = ", ".join(sorted(roles)) or "none"
        for killed, option in ((True, "--kill"), (False, "--pause")):
            for role in self._plan.roles(killed=killed):
                if role == "ps" and status.strategy not in ("", "ps"):
                    raise UsageError(
                        f"{option} ps: the job has no parameter servers, its strategy is "
                        f"{status.strategy}"
                    )
                if role not in roles:
                    raise UsageError(
                        f"{option} {role}: the job has no such process {self._site.where} now; "
                        f"it has: {has}"
                    )


class _Events:
    """Events for the job, kept until a master has accepted them. Thread-safe."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._source = f"chaos-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._waiting: list[pb.Event] = []
        self._count = 0

    def add(self, event: Event) -> None:
        """Append an event; :meth:`deliver` sends it."""
        with self._lock:
            self._count += 1
            self._waiting.append(event_messages.to_message(event, self._count, time.time()))

    def deliver(self) -> None:
        """Send the pending events; those that do not arrive are sent again by the next call."""
        with self._lock:
            events = list(self._waiting)
        if not events:
            return
        with contextlib.suppress(EdlError):  # no master answers
            self._site.ask(pb.AddEventsRequest(source=self._source, events=events))
            with self._lock:
                self._waiting = [e for e in self._waiting if e.sequence > events[-1].sequence]
