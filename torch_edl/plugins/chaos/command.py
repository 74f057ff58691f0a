"""``torch-edl chaos``: kills and pauses processes of a running job, and checks the outcome."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from torch_edl.cli.platforms import find
from torch_edl.cli.progress import duration as clock
from torch_edl.cli.terminal import stderr, stdout
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.plugins.chaos.plan import StormPlan, duration, faults, read
from torch_edl.plugins.chaos.run import Chaos
from torch_edl.plugins.chaos.site import Site
from torch_edl.plugins.chaos.verdict import STALL_S, Gaps, StormVerdict
from torch_edl.processes.signals import StopSignals

if TYPE_CHECKING:
    from rich.status import Status

_EVERY = "3s"
_FOR = "60s"
_FAILED = 1


def main(args: argparse.Namespace) -> int:
    """Run a storm of faults over a job, and print the verdict.

    Returns:
        0: the promise held. 1: it did not. 128 + N: signal N ended the storm.

    Raises:
        UsageError: no such job, or an invalid plan; no fault was injected.
    """
    plan = _plan(args)
    with _Display() as display, contextlib.closing(_site(args, plan)) as site:
        chaos = Chaos(site, plan, line=display.line, progress=display.progress)
        for text in filter(None, [*chaos.risks, chaos.restraint]):
            display.warn(text)
        if chaos.elsewhere:
            display.warn(f"{chaos.elsewhere} processes run on other machines, and are spared")
        stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with StopSignals(stops, wake=chaos.stop) as stopped:
            verdict = chaos.run(wait=args.wait)
    if args.json:
        print(json.dumps(verdict.as_dict(), indent=1))
    else:
        _print(verdict)
    return stopped.exit_code or (0 if verdict.held else _FAILED)


def _site(args: argparse.Namespace, plan: StormPlan) -> Site:
    """Return the site of the job: this machine or a cluster."""
    job = find(args)
    if isinstance(job, LocalJob):
        from torch_edl.plugins.chaos.machine import MachineSite

        return MachineSite(job)
    # Imported here: the Kubernetes client is slow to import and belongs to an extra.
    from torch_edl.plugins.chaos.cluster import ClusterSite
    from torch_edl.plugins.kubernetes.client.cluster_job import ClusterJob

    if not isinstance(job, ClusterJob):
        raise UsageError(
            f"--platform {args.platform}: only processes of this machine and pods of Kubernetes "
            "can be killed"
        )
    return ClusterSite(job, plan)


def _plan(args: argparse.Namespace) -> StormPlan:
    kill, pause = ",".join(args.kill), ",".join(args.pause)
    for_s = duration(args.storm_for, "--for") if args.storm_for else None
    if args.plan:
        for option, value in (("--kill", kill), ("--pause", pause),
                              ("--every", args.every), ("--signal", args.signal)):  # fmt: skip
            if value:
                raise UsageError(f"--plan and {option} {value}: the plan says that; leave one out")
        return read(Path(args.plan), seed=args.seed, for_s=for_s)
    if not kill and not pause:
        raise UsageError("--kill: missing; name roles and numbers, such as --kill worker=2,ps=1")
    found = faults(
        kill=kill,
        pause=pause,
        signal=args.signal or "KILL",
        every_s=duration(args.every or _EVERY, "--every"),
    )
    return StormPlan(faults=found, for_s=for_s or duration(_FOR, "--for"), seed=args.seed or 0)


class _Display:
    """Shows each fault on a line of stderr and, on a terminal, the progress of the storm below."""

    def __init__(self) -> None:
        self._console = stderr()
        self._status: Status | None = None

    def __enter__(self) -> _Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def warn(self, text: str) -> None:
        """Print a warning before the storm begins."""
        self._console.print(f"warning: {text}", style="yellow", soft_wrap=True)

    def line(self, at_s: float, text: str) -> None:
        """Print an action that happened ``at_s`` seconds after the start."""
        self._console.print(f"{at_s:7.1f} s  {text}", soft_wrap=True)

    def progress(self, at_s: float, for_s: float, text: str) -> None:
        """Show the progress of a storm of ``for_s`` seconds, on a terminal only."""
        if not self._console.is_terminal:
            return
        shown = f"{clock(min(at_s, for_s))} of {clock(for_s)}  {text}"
        if self._status is None:
            self._status = self._console.status(shown)
            self._status.start()
        else:
            self._status.update(shown)


def _print(verdict: StormVerdict) -> None:
    console = stdout()
    colour = {True: "green", False: "red", None: "yellow"}[verdict.held]
    console.print(f"{verdict.job}: {verdict.text}", style=f"bold {colour}", soft_wrap=True)
    for problem in verdict.problems:
        console.print(f"  {problem}", style="red", soft_wrap=True)
    before, after, total = (verdict.records[name] for name in ("before", "after", "total"))
    times, back = verdict.rolled_back["times"], verdict.rolled_back["records"]
    rows = [
        ("killed", _counts(verdict.kills)),
        ("paused", _counts(verdict.pauses) if verdict.pauses else ""),
        ("missed", f"{verdict.missed} faults found no process to strike" if verdict.missed else ""),
        ("started", _counts(verdict.replaced)),
        ("records", f"{before:,} before, {after:,} now, of {total:,}"),
        ("", _about(before, after, total, back)),
        ("rolled back", f"{times} times, {back:,} records" if times else "none"),
        ("lost", f"{verdict.updates_lost:,} updates" if verdict.updates_lost else ""),
        ("stalls", _gaps(verdict.stalls, f"above {STALL_S:g} s, ")),
        ("master away", _gaps(verdict.master_away, "")),
        ("job", verdict.state),
        ("seed", str(verdict.seed)),
    ]  # fmt: skip
    for label, value in rows:
        if value:
            console.print(f"  {label:<11} {value}", soft_wrap=True)


def _about(before: int, after: int, total: int, rolled_back: int) -> str:
    """Return an explanation of surprising numbers of records; empty if there is none."""
    if before >= total:
        return "all were trained before the first fault: use more data"
    if after < before and not rolled_back:
        return "fewer now: what processes that died had in hand is trained by others"
    return ""


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {role}" for role, number in sorted(counts.items())) or "none"


def _gaps(gaps: Gaps, least: str) -> str:
    if not gaps.times:
        return "none"
    return f"{gaps.times} {least}the longest {gaps.longest_s:.1f} s"
