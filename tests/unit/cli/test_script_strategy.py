"""What ``torch-edl run`` of a script makes of --ps and --strategy."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.cli.job_config import script_job
from torch_edl.cli.torchrun_arguments import parse
from torch_edl.config import ClusterConfig, JobConfig
from torch_edl.errors import UsageError


def made(folder: Path, words: str) -> JobConfig:
    script = folder / "train.py"
    script.write_text("import torch_edl\njob = torch_edl.init()\n")
    args = parse([*words.split(), str(script)])
    return script_job(args, name="j", min_workers=1, max_workers=2)


@pytest.mark.parametrize(
    ("words", "strategy", "servers"),
    [
        ("", "auto", ClusterConfig().servers),
        ("--ps 3", "ps", 3),
        ("--ps 3 --strategy ps", "ps", 3),
        ("--strategy ps", "ps", ClusterConfig().servers),
        ("--strategy allreduce", "allreduce", ClusterConfig().servers),
    ],
)
def test_servers_that_are_named_are_wanted(
    tmp_path: Path, words: str, strategy: str, servers: int
) -> None:
    config = made(tmp_path, words)
    assert (config.train.strategy, config.cluster.servers) == (strategy, servers)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ps 2 --strategy allreduce", "--ps 2 and --strategy allreduce"),
        ("--strategy local", "--strategy local: it is for model files"),
        ("--strategy pss", "pss"),
    ],
)
def test_what_cannot_be(tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made(tmp_path, words)
