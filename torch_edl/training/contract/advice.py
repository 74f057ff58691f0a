"""Advice on errors of user code whose text does not say what to do."""

from __future__ import annotations

import re
import sys

from torch_edl.processes import usage

_NO_GPU = ("not compiled with CUDA enabled", "Found no NVIDIA driver", "No CUDA GPUs are available")
_ALLOCATION = re.compile(r"tried to allocate (\d+) bytes")


def advice(error: BaseException) -> str:
    """Return what an error means and what to write, as a clause that begins with ``;``; empty for
    errors that need no advice."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"; {not_installed(error.name)}"
    if any(each in text for each in _NO_GPU):
        return (
            '; torch finds no GPU here: write .to("cuda" if torch.cuda.is_available() else "cpu") '
            "in place of .cuda()"
        )
    if (asked := _ALLOCATION.search(text)) is not None:
        now = usage.read()
        total = now["machine_memory_total"]
        free = total - now["machine_memory"]
        return (
            f"; that is {_gib(int(asked[1]))}, and this machine has {_gib(free)} free of "
            f"{_gib(total)}: write a large embedding as torch_edl.nn.Embedding(...), whose rows "
            "are on parameter servers and are created when an id is first seen"
        )
    return ""


def not_installed(module: str) -> str:
    """Return where a module is missing, and how it is installed."""
    name = module.partition(".")[0]
    return (
        f"{name} is not installed in the environment {sys.prefix}: "
        f"{sys.executable} -m pip install {name}, or run torch-edl of the environment that has it"
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"
