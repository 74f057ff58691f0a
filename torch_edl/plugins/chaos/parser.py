"""The command line of ``torch-edl chaos``."""

from __future__ import annotations

import argparse
from typing import Any

from torch_edl.cli.arguments.options import add_locators, add_option, whole
from torch_edl.plugins.chaos.plan import SIGNALS

_EPILOG = """\
examples:
  torch-edl chaos digits --kill worker=2,ps=1 --every 3s --for 60s
      20 rounds; in each, two workers and a server die at random moments

  torch-edl chaos digits --kill master=1 --pause worker=1:5s --every 20s --seed 7
      a master dies and a worker hangs for five seconds, every 20 seconds

  torch-edl chaos digits --plan storm.toml --wait
      the faults of a file; the verdict comes when the job has ended

A plan has faults that happen in each round, or once to several processes together:
  seed = 7
  for = "60s"
  [[fault]]
  kill = "worker=2,ps=1"
  every = "3s"
  [[fault]]
  kill = "ps=1,master=1"
  at = "10s"
  [[fault]]
  pause = "worker=1:5s"
  at = "20s"

Only processes of this job on this machine are affected. If the job runs on a cluster, its pods are
deleted instead of killed, and cannot be paused. The same seed gives the same times, and picks the
same processes if the job has the same processes. Ctrl-C ends the faults, lets paused processes
continue, and leaves the job running. The job lists the faults among its events.

The verdict says what was rolled back, how long training stalled, and whether the job kept what its
settings promise: it trains on, and loses nothing that they protect (see --durability of torch-edl
run). Exit code: 0 if the promise held, 1 if it did not.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the commands of torch-edl."""
    line = "kill and pause processes of a running job, to test its set-up"
    chaos = commands.add_parser(
        "chaos", help=line, description=f"{line.capitalize()}.", epilog=_EPILOG
    )
    chaos.set_defaults(runs="torch_edl.plugins.chaos.command.main")
    chaos.add_argument("job", metavar="JOB", help="name of the job")
    several: dict[str, Any] = {"action": "append", "default": []}
    text = "kill N of worker, ps and master in each round"
    add_option(chaos, "--kill ROLE=N,...", text, **several)
    text = "processes to pause in each round, and how long"
    add_option(chaos, "--pause ROLE=N:TIME,...", text, **several)
    add_option(chaos, "--every TIME", "length of a round (default: 3s)")
    add_option(chaos, "--for TIME", "length of all rounds (default: 60s)", dest="storm_for")
    add_option(chaos, "--seed N", "choose other times and processes (default: 0)", type=whole)
    text = "how processes are killed (default: KILL)"
    add_option(chaos, "--signal KILL|TERM", text, choices=SIGNALS)
    add_option(chaos, "--plan FILE", "a TOML file with faults, instead of --kill and --pause")
    add_option(chaos, "--wait", "wait for the end of the job before the verdict")
    add_option(chaos, "--json", "print the verdict as JSON")
    add_locators(chaos)
