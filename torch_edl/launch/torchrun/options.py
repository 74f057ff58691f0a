"""Parse torchrun's rendezvous options, for torch's agent and for torch_edl's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.wire.endpoint import LOOPBACK, is_any, is_local

DEFAULT_PORT = 29400
# Default of torchrun's --rdzv-id.
DEFAULT_ID = "none"
# Default of torch's c10d backend.
JOIN_TIMEOUT_S = 600.0


def endpoint(named: str, *, machines: int) -> str:
    """Return ``host:port`` of ``--rdzv-endpoint``, with default port and IPv6 brackets.

    For a single machine, an address of this machine is replaced by the loopback address, so that no
    other machine can connect.

    Raises:
        UsageError: the endpoint is invalid, or names no machine.
    """
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    try:
        host, port = parse_rendezvous_endpoint(named, default_port=DEFAULT_PORT)
    except ValueError as error:
        raise UsageError(f"--rdzv-endpoint {named}: {error}") from error
    found = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if machines == 1 and is_local(found):
        return f"{LOOPBACK}:{port}"
    if is_any(found):
        raise UsageError(
            f"--rdzv-endpoint {named}: all interfaces, which names no machine; write an address of "
            "the machine of the master that the other machines reach"
        )
    return found


def job_name(run_id: str) -> str:
    """Return the name of the job for ``--rdzv-id``, which is also a valid folder name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", run_id).strip("-.") or "job"


def job_names(run_id: str, port: int) -> list[str]:
    """Return the possible names of the job for ``--rdzv-id`` and a port, the preferred one first.

    Jobs with the same id at two ports are two jobs.
    """
    if run_id == DEFAULT_ID:
        return [f"torchrun-{port}"]
    name = job_name(run_id)
    return [name, f"{name}-{port}"]


def unquoted(configs: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``--rdzv-conf`` without quotes that a YAML file or script may have added."""
    return {
        key.strip("'\""): value.strip("'\"") if isinstance(value, str) else value
        for key, value in configs.items()
    }


def seconds(configs: Mapping[str, Any], key: str, default: float) -> float:
    """Return a duration in seconds from ``--rdzv-conf``.

    Raises:
        UsageError: the value is not a valid duration.
    """
    value = configs.get(key)
    if value is None:
        return default
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise UsageError(f"--rdzv-conf {key}={value}: write a number of seconds, {key}=60")
    return found
