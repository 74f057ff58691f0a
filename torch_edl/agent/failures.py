"""Why a job of a script failed, in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from torch_edl.processes.signals import describe_exit


def failure_of(name: str, failures: Mapping[int, ProcessFailure]) -> tuple[str, str]:
    """The first failure of a script's workers in a sentence, and its traceback if it told of one.

    Args:
        failures: by rank.
    """
    rank, failure = min(failures.items(), key=lambda item: item[1].timestamp)
    error = f"{name}: rank {rank} ended ({describe_exit(failure.exitcode)})"
    message: Any = failure.message
    if not isinstance(message, dict):
        return error, ""
    trace = str(message.get("extraInfo", {}).get("py_callstack", ""))
    return f"{error}: {message.get('message', '')}", trace
