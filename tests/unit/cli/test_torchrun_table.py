"""docs/torchrun.md says what becomes of each flag of torchrun."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from torch.distributed.run import get_args_parser

from torch_edl.cli.options import add_options

DOCS = Path(__file__).parents[3] / "docs" / "torchrun.md"


def flags_of_the_tables() -> set[str]:
    rows = re.findall(r"^\| (`-[^|]*)\|", DOCS.read_text(), re.MULTILINE)
    return {flag for row in rows for flag in re.findall(r"`(-[^`]*)`", row)}


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Every flag, in the spelling with dashes."""
    return {flag for action in parser._actions for flag in action.option_strings if "_" not in flag}


def test_every_flag_is_in_the_table_and_no_other() -> None:
    parser = get_args_parser()
    add_options(parser, "script")
    assert flags_of_the_tables() == flags_of(parser)
