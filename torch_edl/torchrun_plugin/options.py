"""torchrun's options of the rendezvous, read for torch's agent and for ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch_edl.errors import UsageError
from torch_edl.wire.endpoint import LOOPBACK, is_any, is_local

DEFAULT_PORT = 29400
# torchrun's, of --rdzv-id.
DEFAULT_ID = "none"
# As torch's c10d backend.
JOIN_TIMEOUT_S = 600.0


def endpoint(named: str, *, machines: int) -> str:
    """``host:port`` of ``--rdzv-endpoint``, with the default port and brackets where they lack.

    Where at most one machine takes part, an address of this machine becomes the loopback address:
    nothing is to be reached from elsewhere.

    Raises:
        UsageError: it is not of that form, or names no machine.
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
    """The name of the job of ``--rdzv-id``: what a folder may be called."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", run_id).strip("-.") or "job"


def job_names(run_id: str, port: int) -> list[str]:
    """What the job of ``--rdzv-id`` at a port may be called, the best first: jobs of the same id
    at two ports are two jobs."""
    if run_id == DEFAULT_ID:
        return [f"torchrun-{port}"]
    name = job_name(run_id)
    return [name, f"{name}-{port}"]


def unquoted(configs: Mapping[str, Any]) -> dict[str, Any]:
    """``--rdzv-conf`` as it was meant where quotes reached us, as from a YAML file or a script."""
    return {
        key.strip("'\""): value.strip("'\"") if isinstance(value, str) else value
        for key, value in configs.items()
    }


def seconds(configs: Mapping[str, Any], key: str, default: float) -> float:
    """A duration of ``--rdzv-conf``.

    Raises:
        UsageError: it is none.
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
