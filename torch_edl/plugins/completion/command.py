"""``torch-edl completion``: prints the code that a shell loads."""

from __future__ import annotations

import argparse

from torch_edl.errors import UsageError

REPLY = "torch-edl-complete"
"""Program that the shell runs at each Tab; setup.cfg installs it."""


def main(args: argparse.Namespace) -> int:
    """Print the code that a shell evaluates.

    Raises:
        UsageError: argcomplete is not installed.
    """
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError as error:
        raise UsageError(
            "torch-edl completion needs argcomplete: pip install 'torch-edl[completion]'"
        ) from error
    print(shellcode(["torch-edl"], shell=args.shell, argcomplete_script=REPLY))
    return 0
