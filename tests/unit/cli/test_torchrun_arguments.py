"""torchrun's command line with our options: where agents meet, threads, the table of the page."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from torch_edl.cli.arguments.options import add_options
from torch_edl.cli.arguments.script_arguments import parse
from torch_edl.cli.script import may_restart_here
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.master_host import ANY_PORT
from torch_edl.launch.torchrun.options import launch_config, meeting_point

DOCS = Path(__file__).parents[3] / "docs" / "torchrun.md"


@pytest.mark.parametrize(
    ("words", "endpoint"),
    [
        ("", ""),
        ("--nnodes 1:4", ""),
        ("--nnodes 1:4 --standalone --rdzv-endpoint node0:1", ""),
        ("--nnodes 1:4 --rdzv-id mine", ANY_PORT),
        ("--rdzv-id mine", ""),  # nobody else has a place
        ("--nnodes 1:4 --rdzv-endpoint node0", "node0:29400"),
        # An address of this machine is for others to reach it: there are none with one machine.
        ("--nnodes 1:4 --rdzv-endpoint 127.0.0.2", "127.0.0.2:29400"),
        ("--rdzv-endpoint 127.0.0.2:29411", "127.0.0.1:29411"),
        ("--rdzv-endpoint node0", "node0:29400"),
        ("--nnodes 1:4 --master-port 29511", "127.0.0.1:29511"),
        ("--nnodes 1:4 --master-addr node0", "node0:29500"),
        ("--nnodes 2", "127.0.0.1:29500"),  # torchrun's own default
        ("--nnodes 2 --rdzv-id mine", ANY_PORT),
    ],
)
def test_nothing_is_joined_that_nobody_named(tmp_path: Path, words: str, endpoint: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch_edl\njob = torch_edl.init()\n")
    args = parse([*words.split(), str(script)])
    assert meeting_point(args, launch_config(args)[0]) == endpoint


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_an_endpoint_that_names_no_machine_is_rejected(tmp_path: Path, host: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch_edl\njob = torch_edl.init()\n")
    args = parse(["--nnodes", "2", "--rdzv-endpoint", f"{host}:29400", str(script)])
    with pytest.raises(UsageError, match="names no machine"):
        meeting_point(args, launch_config(args)[0])


@pytest.mark.parametrize(
    ("line", "may"),
    [
        ("--max-restarts 3", True),
        ("--max-restarts 3 --standalone", True),
        ("", False),
        ("--standalone", False),
        # What is named is torch's affair.
        ("--max-restarts 3 --master-port 29501", False),
        ("--max-restarts 3 --rdzv-backend c10d", False),
        ("--max-restarts 3 --rdzv-endpoint localhost:29501", False),
        ("--max-restarts 3 --nnodes 2", False),
    ],
)
def test_who_may_restart_a_plain_script_does_not_meet_at_a_store_of_the_dead(
    tmp_path: Path, line: str, may: bool
) -> None:
    (tmp_path / "plain.py").write_text("import torch\n")
    args = parse([*line.split(), str(tmp_path / "plain.py")])
    assert may_restart_here(args) is may


@pytest.mark.parametrize(
    ("words", "named", "threads"),
    [
        ("--nproc-per-node 2", None, "4"),
        ("--workers 1:3", None, "2"),
        ("--workers 20", None, "1"),
        ("--nproc-per-node 1", None, None),  # torch takes all cores
        ("--workers 2", "7", "7"),
    ],
)
def test_the_cores_are_divided_without_a_warning(
    words: str,
    named: str | None,
    threads: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", named or "")  # put back after the test
    if named is None:
        del os.environ["OMP_NUM_THREADS"]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    script = tmp_path / "train.py"
    script.write_text("import torch_edl\njob = torch_edl.init()\n")
    launch_config(parse([*words.split(), str(script)]))
    assert os.environ.get("OMP_NUM_THREADS") == threads
    assert "OMP" not in capfd.readouterr().err


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
