"""``torch-edl doctor``: runs the checks of a machine or of a cluster, and prints the findings."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from torch_edl.cli.arguments.options import locators, platform_of
from torch_edl.cli.terminal import stderr, stdout
from torch_edl.config.job import LOCAL
from torch_edl.errors import UsageError
from torch_edl.events import counted
from torch_edl.plugins.doctor import disk, machine, network, software
from torch_edl.plugins.doctor.finding import Finding, report, warning

Check = Callable[[], Iterator[Finding]]
KUBERNETES = "kubernetes"
_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def main(args: argparse.Namespace) -> int:
    """Run the checks; return 1 if no job can run.

    Raises:
        UsageError: there are no checks for the platform.
    """
    platform = platform_of(args)
    console = stdout()
    findings: list[Finding] = []
    for each in _run(_checks(args, platform)):
        findings.append(each)
        if not args.json:
            _show(each, console)
    if args.json:
        print(json.dumps(report(platform, findings), indent=1))
    else:
        _conclude(platform, findings, console)
    return int(any(each.state == "problem" for each in findings))


def _checks(args: argparse.Namespace, platform: str) -> Mapping[str, Check]:
    """Return the checks of a platform by their subject."""
    shared = {"python": software.python, "packages": software.packages, "clock": machine.clock}
    if platform == KUBERNETES:
        from torch_edl.plugins.doctor import cluster

        where = locators(args, platform)
        return {**shared, "cluster": functools.partial(cluster.cluster, where)}
    if platform != LOCAL:
        known = f"{LOCAL} and {KUBERNETES}"
        raise UsageError(f"--platform {platform}: doctor has checks for {known} only")
    return {
        **shared,
        "torch": software.torch,
        "compiled core": software.core,
        "memory": machine.memory,
        "shared memory": machine.shared_memory,
        "limits": machine.limits,
        "free ports": network.ports,
        "loopback": network.loopback,
        "machine name": network.name,
        "output folder": functools.partial(disk.output, args.output),
        "job folder": disk.home,
    }


def _run(checks: Mapping[str, Check]) -> Iterator[Finding]:
    """Run all checks, and yield each finding when it is known; on a terminal, show the check that
    runs."""
    with stderr().status("") as status:
        for subject, check in checks.items():
            status.update(f"checking {subject}")
            try:
                yield from check()
            except OSError as error:  # a part of /proc or /sys that this system does not show
                where = f"{error.filename}: " if error.filename else ""
                fix = "check it manually; this user may not read it on this system"
                yield warning(subject, f"{where}{error.strerror or error}", fix)


def _show(finding: Finding, console: Console) -> None:
    """Print the finding, and what to change."""
    line = Text(f"{finding.state:<8} ", style=_STYLES[finding.state])
    line.append(f"{finding.check}: {finding.found}", style="default")
    console.print(line, soft_wrap=True)
    if finding.fix:
        console.print(f"{'':<8} {finding.fix}", soft_wrap=True)
    sys.stdout.flush()  # of a pipe, too: a check may take a minute


def _conclude(platform: str, findings: Sequence[Finding], console: Console) -> None:
    problems = sum(each.state == "problem" for each in findings)
    warnings = sum(each.state == "warning" for each in findings)
    where = "on this machine" if platform == LOCAL else f"on {platform}"
    text, state = f"a job can run {where}", "ok"
    if problems:
        text, state = f"no job can run {where}: {counted(problems, 'problem')}", "problem"
    if warnings:
        text += f", {counted(warnings, 'warning')}"
        state = "problem" if problems else "warning"
    console.print(Text(text, style=f"bold {_STYLES[state].removeprefix('bold ')}"), soft_wrap=True)
