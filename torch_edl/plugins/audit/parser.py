"""The command line of ``torch-edl audit``."""

from __future__ import annotations

import argparse

from torch_edl.cli.arguments.options import add_locators, add_option

_EPILOG = """\
examples:
  torch-edl audit digits
      per epoch: tasks, records, workers, and what was returned to the queue and why

  torch-edl audit digits --tasks --json
      also each task with its records and the workers that trained them

Only files are read: tasks.jsonl and status.json of the job's folder, the state that a master left
there, and the newest checkpoint. A job on a cluster has this folder on its --state-claim; without
one, the ledger is lost with the pod of the master, and nothing is proven.
Exit code: 0 if each record counted once, or did so far in a job that has not finished; 1 if a
record was lost or counted twice, if the folder was changed, or if nothing proves either.
docs/guarantees.md says what the proof rests on, docs/json.md describes the JSON.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the commands of torch-edl."""
    line = "check from the folder of a job that each training record counted once"
    audit = commands.add_parser(
        "audit", help=line, description=f"{line.capitalize()}.", epilog=_EPILOG
    )
    audit.set_defaults(runs="torch_edl.plugins.audit.command.main")
    text = "name of the job (default: newest)"
    audit.add_argument("job", nargs="?", metavar="JOB", help=text)
    add_option(audit, "--tasks", "list each task with its records and workers (default: no)")
    add_option(audit, "--json", "print one JSON object")
    add_locators(audit)
