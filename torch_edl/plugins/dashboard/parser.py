"""The command line of ``torch-edl dashboard``."""

from __future__ import annotations

import argparse

from torch_edl.cli.arguments.options import add_locators, add_option, whole

_EPILOG = """\
examples:
  torch-edl dashboard
      serve a page of the newest job; the command prints its address

  torch-edl dashboard digits --port 8265
  torch-edl dashboard digits --export digits.html
      write the page with its data to one file, which any browser shows

The page is served on 127.0.0.1 to those who have the token in its address. From another machine:
  ssh -L 8265:127.0.0.1:8265 HOST
Ctrl-C ends the page, and leaves the job alone.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the commands of torch-edl."""
    line = "show a job in a browser: curves, processes, what failures cost, events, logs"
    dashboard = commands.add_parser(
        "dashboard", help=line, description=f"{line.capitalize()}.", epilog=_EPILOG
    )
    dashboard.set_defaults(runs="torch_edl.plugins.dashboard.command.main")
    text = "name of the job (default: newest)"
    dashboard.add_argument("job", nargs="?", metavar="JOB", help=text)
    text = "port of the page on 127.0.0.1 (default: a free one)"
    add_option(dashboard, "--port N", text, type=whole, default=0)
    text = "write the page to FILE.html and end (default: serve the page)"
    add_option(dashboard, "--export FILE.html", text, default="")
    add_locators(dashboard)
