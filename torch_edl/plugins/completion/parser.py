"""The command line of ``torch-edl completion``."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")

_EPILOG = """\
bash, in ~/.bashrc:
  eval "$(torch-edl completion bash)"

zsh, in ~/.zshrc, after compinit:
  eval "$(torch-edl completion zsh)"

fish, once:
  torch-edl completion fish > ~/.config/fish/completions/torch-edl.fish

Tab then completes commands, options and their values, files, and the names of jobs on this machine.
At each Tab, the shell runs the program torch-edl-complete of the active Python environment.
Completion needs an optional package: pip install 'torch-edl[completion]'
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the commands of torch-edl."""
    line = "print the shell code that completes torch-edl commands"
    completion = commands.add_parser(
        "completion", help=line, description=f"{line.capitalize()}.", epilog=_EPILOG
    )
    completion.set_defaults(runs="torch_edl.plugins.completion.command.main")
    text = "shell that runs the code: bash, zsh or fish"
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=text)
