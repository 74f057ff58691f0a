"""Processes that are forked from one that has imported torch: milliseconds instead of seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

from torch_edl.pytorch.torch_internals import defer_compiler

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch", "torch.distributed", "torch.utils.data", "pytest", "torch_edl.api.job",
     "torch_edl.cli.__main__", "torch_edl.cli.script", __name__]
)  # fmt: skip
defer_compiler()  # here and in the server, which imports this module


def run_torch_edl(words: list[str], env: dict[str, str], out: Path, err: Path) -> None:
    """Does in a forked process what ``python -m torch_edl.cli`` does in its own."""
    from torch_edl.cli.__main__ import main

    os.environ.clear()
    os.environ.update(env)
    for fd, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), fd)
    sys.argv = ["torch-edl", *words]
    sys.exit(main(words))
