"""The command line of ``torch-edl doctor``."""

from __future__ import annotations

import argparse

from torch_edl.cli.arguments.options import add_locators, add_option

_EPILOG = """\
examples:
  torch-edl doctor --output /data/models
      check this machine, and the disk of the folder for models

  torch-edl doctor --platform kubernetes --namespace ml
      check the kubeconfig, the rights of its user in the namespace, and the nodes

Checks Python, the packages, torch and the time of its import, GPUs, the compiled core, memory,
limits, the clock, ports, connections on loopback, and the disks of two folders. The test of a disk
writes 64 MB and removes them. Nothing is created on a cluster. Each finding that needs a change
names the change.
Exit code: 0 if a job can run, perhaps with warnings; 1 if no job can run.
docs/operations.md lists the checks, docs/json.md describes the JSON.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the commands of torch-edl."""
    line = "check that a job can run on this machine, or on a cluster"
    doctor = commands.add_parser(
        "doctor", help=line, description=f"{line.capitalize()}.", epilog=_EPILOG
    )
    doctor.set_defaults(runs="torch_edl.plugins.doctor.command.main")
    text = "folder that jobs will write models to (default: the current folder)"
    add_option(doctor, "--output DIR", text, default=".")
    add_option(doctor, "--json", "print one JSON object")
    add_locators(doctor)
