"""The environment variables that the project reads, and the folder that one of them names."""

from __future__ import annotations

import os
from pathlib import Path

ENV_HOME = "TORCH_EDL_HOME"
ENV_TOKEN = "TORCH_EDL_TOKEN"
ENV_MASTER = "TORCH_EDL_MASTER"
ENV_NODE = "TORCH_EDL_NODE"
"""Name of the agent that started a worker of a script."""

# Python's own: the salt of hash() for strings.
_HASH_SEED = "PYTHONHASHSEED"


def hash_environment(seed: int) -> dict[str, str]:
    """Variables that give ``hash("user-1")`` the same value in all processes of a job.

    Python salts the hash of strings with a random number per process by default. The result is
    empty where the user has set the salt.
    """
    return {} if os.environ.get(_HASH_SEED) else {_HASH_SEED: str(seed % 2**32)}


def edl_home() -> Path:
    """The folder of jobs and caches: ``$TORCH_EDL_HOME``, else ``~/.local/state/torch-edl``."""
    named = os.environ.get(ENV_HOME)
    return Path(named) if named else Path.home() / ".local" / "state" / "torch-edl"


def job_dir(name: str) -> Path:
    """The folder of one job: its configuration, address, state and logs."""
    return edl_home() / "jobs" / name
