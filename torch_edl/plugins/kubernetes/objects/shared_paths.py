"""Checks that paths used by several pods are on a volume that all pods share. Pure.

On one machine a path means the same file to all processes. A pod has its own root, so a file
written there, such as a part of a checkpoint, cannot be read by another pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.cluster.pod_state import container, mapping, mappings

_VOLUME = "add --volume claim=NAME,path={folder} (of a claim that many pods can write to)"
# Volumes that cannot be written to, and the one that each pod has for itself.
_FIXED = ("configMap", "secret")
_OWN = "emptyDir"


def check(config: JobConfig) -> None:
    """Raise UsageError, which names the option, if processes of a job could not read each other's
    files."""
    if config.durability.mode == "journal" and not config.durability.journal_dir:
        raise UsageError(
            "--durability journal: the journal of a server would be gone with its pod; add "
            "--journal-dir on a --volume, or take --durability replica"
        )
    mounts = _mounts(config)
    for option, path in (
        ("--checkpoint-dir", config.checkpoint.dir),
        ("--output", config.checkpoint.output),
        ("--journal-dir", config.durability.journal_dir),
    ):
        if not path:
            continue
        inside = [each for each in mounts if PurePosixPath(path).is_relative_to(each)]
        fix = _VOLUME.format(folder=PurePosixPath(path).parent)
        if not inside:
            raise UsageError(
                f"{option} {path}: no volume is mounted there, and each pod would write to a "
                f"folder of its own; {fix}"
            )
        why = mounts[max(inside, key=lambda each: len(PurePosixPath(each).parts))]
        if why:
            raise UsageError(f"{option} {path}: the volume there {why}; {fix}")


def temporary(config: JobConfig, own: Path) -> Path:
    """Return a folder for temporary files that processes of a job exchange.

    Args:
        own: the folder of the job, which only the master can read.
    """
    checkpoint = config.checkpoint
    if checkpoint.dir or not checkpoint.output or not config.trains:
        return own
    return Path(checkpoint.output).parent / f".{names.of_job(config.name)}"


def parts(config: JobConfig) -> str:
    """Return the folder of unmerged predictions, on the same volume as the output."""
    output = PurePosixPath(config.checkpoint.output)
    return str(output.parent / f".{names.of_job(config.name)}-parts")


def _mounts(config: JobConfig) -> dict[str, str]:
    """Return the mount paths of all volumes, with the reason why pods cannot share files there.

    The reason is empty if they can.
    """
    volumes, mounts = config.platform_config.volumes
    spec = mapping(config.platform_config.template, "spec")
    by_name = {str(each.get("name")): each for each in [*volumes, *mappings(spec, "volumes")]}
    return {
        str(each.get("mountPath")): _why_not(by_name.get(str(each.get("name")), {}), each)
        for each in [*mounts, *mappings(container(spec, "containers"), "volumeMounts")]
    }


def _why_not(volume: Mapping[str, Any], mount: Mapping[str, Any]) -> str:
    if mount.get("readOnly"):
        return "is mounted read-only"
    if any(source in volume for source in _FIXED):
        return "cannot be written to"
    return "is of one pod alone" if _OWN in volume else ""
