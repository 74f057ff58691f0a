"""The environment of a process: variables, the folder of jobs, the experiment of the command, and
files of YAML that a user names."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_edl.config import Experiment, JobConfig
from torch_edl.errors import UsageError

ENV_HOME = "TORCH_EDL_HOME"
ENV_TOKEN = "TORCH_EDL_TOKEN"
ENV_PLATFORM = "TORCH_EDL_PLATFORM"
"""Name of the platform that started a master; unset: the master runs on the user's machine."""
ENV_TLS = "TORCH_EDL_TLS"
"""Folder of the certificates for connections off loopback; unset: the token makes them."""
ENV_MASTER = "TORCH_EDL_MASTER"
ENV_NODE = "TORCH_EDL_NODE"
"""Name of the agent of torchrun that started a worker of a script; unset: no torchrun did."""
ENV_HOST = "TORCH_EDL_HOST"
"""The address at which the other processes of a job reach this one; unset: loopback."""
ENV_MODEL_FILE = "TORCH_EDL_MODEL_FILE"
"""Path of the model file on a machine that has joined a job; unset: as on the master's machine."""
ENV_MASTER_AWAY = "TORCH_EDL_MASTER_AWAY"
"""Seconds after which a process ends by itself that no master has answered; unset: a minute."""
ENV_NOTICE = "TORCH_EDL_NOTICE"
"""``--preemption-notice`` of a process that leaves by itself after a notice; unset: none does."""
ENV_PROCESS = "TORCH_EDL_PROCESS"
"""Role and id of the process in its job, such as ``worker-3``."""
ENV_NODE_OF_POD = "TORCH_EDL_NODE_OF_POD"
"""Name of the node that ``torch-edl run`` of a script becomes in a pod; unset elsewhere."""

ENV_UNSEEN = "TORCH_EDL_UNSEEN"
"""Set where ``torch-edl run`` runs a script as torchrun does, since it found no torch_edl in it."""

# Python's own: the salt of hash() for strings.
_HASH_SEED = "PYTHONHASHSEED"
_MAX_YAML_BYTES = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def hash_environment(seed: int) -> dict[str, str]:
    """Variables that give ``hash("user-1")`` the same value in all processes of a job.

    Python salts the hash of strings with a random number per process by default. The result is
    empty where the user has set the salt.
    """
    return {} if os.environ.get(_HASH_SEED) else {_HASH_SEED: str(seed % 2**32)}


def own_id() -> int:
    """The id that the node of this process has given it; -1 if torchrun has started it."""
    if os.environ.get(ENV_NODE):
        return -1
    id = os.environ.get(ENV_PROCESS, "").rpartition("-")[2]
    return int(id) if id.isdecimal() else -1


def own_host() -> str:
    """The address at which the other processes of the job reach this one, as in ``host:port``."""
    host = os.environ.get(ENV_HOST) or "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def on_this_machine(config: JobConfig) -> JobConfig:
    """Return the configuration of a job with the path that the model file has on this machine."""
    path = os.environ.get(ENV_MODEL_FILE)
    return replace(config, model_file=path) if path else config


def master_away_s() -> float:
    """Seconds after which this process ends that no master has answered. The pod of a master may
    wait for a node, and whoever deletes a job deletes its pods."""
    return float(os.environ.get(ENV_MASTER_AWAY) or 60.0)


def edl_home() -> Path:
    """The folder of jobs and caches: ``$TORCH_EDL_HOME``, else ``~/.local/state/torch-edl``."""
    named = os.environ.get(ENV_HOME)
    return Path(named) if named else Path.home() / ".local" / "state" / "torch-edl"


def this_experiment(
    script: str, args: Sequence[str], *, rdzv_id: str, file: Path | None
) -> Experiment:
    """Return the experiment that this process was asked to run.

    Args:
        script: absolute path of the script, or the name of a module.
        file: the file whose text is run, if it is known.
    """
    return Experiment(
        script=script,
        args=tuple(args),
        folder=str(Path.cwd().resolve()),
        machine=f"{socket.gethostname()}/{_content(_BOOT_ID).decode().strip()}",
        rdzv_id=rdzv_id,
        digest=hashlib.sha256(text).hexdigest() if (text := _content(file)) else "",
    )


def read_yaml(path: str, *, option: str, content: str, typed: bool = True) -> Any:
    """Return the content of a YAML file that a user names.

    Args:
        option: option that named the file, for errors.
        content: expected content, such as ``options``, for errors.
        typed: False: all values are texts.

    Raises:
        UsageError: the file cannot be read, is too large, or is not YAML.
    """
    import yaml  # a command without such a file starts without it

    where, wanted = f"{option} {path}", f"name a YAML file of {content}"
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_YAML_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}; {wanted}") from error
    if len(text) > _MAX_YAML_BYTES:
        raise UsageError(f"{where}: above {_MAX_YAML_BYTES >> 20} MiB; {wanted}")
    try:
        return yaml.load(text, Loader=yaml.SafeLoader if typed else yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split()).replace('in "<byte string>", ', "at ")
        raise UsageError(f"{where}: no YAML: {problem[:200]}; {wanted}") from error


def _content(file: Path | None) -> bytes:
    try:
        return file.read_bytes() if file is not None else b""
    except OSError:
        return b""
