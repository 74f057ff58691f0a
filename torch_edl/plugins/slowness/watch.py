"""The watch over slow workers and servers of a job. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from torch_edl.config import JobConfig
from torch_edl.events import MachineSlow, ProcessRecovered, ProcessSlow
from torch_edl.interfaces import Verdict
from torch_edl.plugins.slowness.rates import SLOW, WITHIN_S, Change, Slowness, Work, shares
from torch_edl.processes.pressure import Pressure, cause
from torch_edl.wire import master_pb2 as pb

# Minibatches of the median worker, and calls of the median server, below which rates say nothing.
_MINIBATCHES, _CALLS = 8, 50
_WORKER_BUSY_S, _SERVER_BUSY_S = 6.0, 1.5
# Seconds between two replacements. All processes may be on one slow machine, so that a replacement
# would change nothing.
_REPLACE_AGAIN_S = 300.0


class SlowProcesses:
    """Compares workers by records a second while they train, members of a ring by records a second
    of forward and backward, and servers by calls a second of the time that they spend on calls."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        least = float(_MINIBATCHES * config.data.batch_size)
        self._roles = {
            "worker": Slowness(least=least, least_busy_s=_WORKER_BUSY_S),
            "ps": Slowness(least=_CALLS, least_busy_s=_SERVER_BUSY_S),
        }
        self._busy_s: dict[int, float] = {}  # by worker
        self._pressure: dict[tuple[str, int], tuple[Pressure, Pressure]] = {}  # first, newest
        self._checked: set[int] = set()  # workers whose machines were compared
        self._told: set[int] = set()  # those of them with slow machines
        self._looked_at: float | None = None
        self._replace_from = 0.0

    def look(self, status: pb.GetStatusResponse, now: float) -> Iterable[Verdict]:
        """Compare all processes that run; see :class:`torch_edl.interfaces.Watch`."""
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        running = [process for process in status.processes if process.state == "running"]
        workers = [process for process in running if process.role == "worker"]
        servers = [process for process in running if process.role == "ps"]
        self._hear([*workers, *servers])
        in_ring = status.strategy == "allreduce"
        verdicts = self._of_machines(workers, now)
        for role, work in (
            ("worker", self._of_workers(workers, passed_s, in_ring=in_ring)),
            ("ps", _of_servers(servers)),
        ):
            rates = self._roles[role]
            changes = {change.id: change for change in rates.sample(work, now)}
            for id in sorted(rates.suspects | changes.keys()):
                slow = max(rates.slow[id], 1e-3) if id in rates.slow else 0.0
                found = Verdict(role, id, slow=slow)
                if (change := changes.get(id)) is not None:
                    found = self._told_of(found, change, now)
                verdicts.append(found)
        return verdicts

    def _hear(self, processes: Iterable[pb.ProcessStatus]) -> None:
        """Keep the first and the newest counts of the machine of each suspect."""
        heard = {}
        for process in processes:
            told = Pressure.of(process.machine)
            if told is not None and process.id in self._roles[process.role].suspects:
                key = process.role, process.id
                first, _ = self._pressure.get(key, (told, told))
                heard[key] = first, told
        self._pressure = heard

    def _of_machines(self, workers: Iterable[pb.ProcessStatus], now: float) -> list[Verdict]:
        """Name the workers whose machines were measured and are slow."""
        told = {worker.id: worker.machine for worker in workers if "flops" in worker.machine}
        if told.keys() <= self._checked:
            return []
        self._checked = set(told)
        computed = shares({id: each["flops"] for id, each in told.items()})
        copied = shares({id: each["copied"] for id, each in told.items()})
        slow = {id: min(computed[id], share) for id, share in copied.items() if id in computed}
        found = []
        for id in sorted(id for id, share in slow.items() if share < SLOW and id not in self._told):
            self._told.add(id)
            event = MachineSlow(
                process=f"worker-{id}",
                share=slow[id],
                compared=len(told),
                flops=told[id]["flops"],
                copied=told[id]["copied"],
            )
            replace = self._replaces("worker", True, now)
            found.append(Verdict("worker", id, event=event, replace=replace))
        return found

    def _of_workers(
        self, workers: Iterable[pb.ProcessStatus], passed_s: float, *, in_ring: bool
    ) -> dict[int, Work]:
        work = {}
        for worker in workers:
            busy = passed_s if worker.phase == "training" else 0.0
            busy_s = self._busy_s.get(worker.id, 0.0) + busy
            work[worker.id] = Work(worker.records, worker.busy_s if in_ring else busy_s)
        self._busy_s = {id: each.busy_s for id, each in work.items()}
        return work

    def _told_of(self, found: Verdict, change: Change, now: float) -> Verdict:
        """Return the verdict with the event of a process that became slow or recovered."""
        role, name = found.role, f"{found.role}-{found.id}"
        if not change.is_slow:
            return found._replace(event=ProcessRecovered(process=name))
        known = self._pressure.get((role, found.id))
        why = cause(*known) if known is not None else ""
        event = ProcessSlow(
            process=name,
            share=change.share,
            compared=change.others,
            within_s=WITHIN_S,
            likely=why,
        )
        return found._replace(event=event, replace=self._replaces(role, bool(why), now))

    def _replaces(self, role: str, has_cause: bool, now: float) -> bool:
        """Return whether to replace a slow process. A server is replaced only if its machine is the
        cause; otherwise its shard may have more work, and would be slow on any machine."""
        useful = role == "worker" or has_cause
        if not self._config.cluster.replace_slow or not useful or now < self._replace_from:
            return False
        self._replace_from = now + _REPLACE_AGAIN_S
        return True


def _of_servers(servers: Iterable[pb.ProcessStatus]) -> dict[int, Work]:
    work = {}
    for server in servers:
        pulls, pushes = server.counts.pull_s, server.counts.push_s
        work[server.id] = Work(sum(pulls.counts) + sum(pushes.counts), pulls.sum + pushes.sum)
    return work
