"""The master of a script: a node finds the master at an endpoint, or starts one there.

Locks on the endpoint, and on the start of any master, prevent two nodes that begin at the same
moment from both starting a master.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from torch_edl.config import JobConfig
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.errors import UsageError
from torch_edl.launch.jobs import folder
from torch_edl.launch.jobs.folder import ENDED, JobFolder
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.launch.jobs.master_process import MasterProcess
from torch_edl.wire.endpoint import (
    LOOPBACK,
    is_listening,
    is_local,
    is_loopback_name,
    is_remote,
    is_same,
    split,
)
from torch_edl.wire.security.keys import require_strong

log = logging.getLogger(__name__)

ANY_PORT = f"{LOOPBACK}:0"
"""Endpoint for nodes of this machine, which find the master by the name of the job."""

_LOOK_S = 0.1
# Time to wait for the master of an older job to leave, and before a message about the wait.
_LEAVES_S = 60.0
_PATIENCE_S = 2.0
# Time for which a process that listens may be a master that has not written its address yet.
_UNKNOWN_S = 2.0
_OVER = ("finishing", *ENDED)


@dataclass(frozen=True, kw_only=True)
class JobMaster:
    """The address of a job's master, and the resources that this process holds for the job."""

    address: str
    token: str
    hosted: MasterProcess | None = None
    """The master process, if this process has started it; else None."""
    job: str = ""
    """Name of the job; empty if its folder is on another machine or belongs to another user."""
    presence: BinaryIO | None = None
    """Open lock file that marks a node of this machine as alive; None without a folder."""

    def environment(self) -> dict[str, str]:
        """Return the variables with which a worker finds the master."""
        return {ENV_MASTER: self.address, ENV_TOKEN: self.token}

    def leave(self) -> None:
        """Mark this node as gone."""
        if self.presence is not None:
            self.presence.close()


def start(config: JobConfig, *, listen: str = ANY_PORT, follows: bool = True) -> JobMaster:
    """Start the master of a new job on this machine.

    If the environment contains a token, the job gets this token, so that nodes of other machines
    know the token too.

    Raises:
        UsageError: a job of that name is running, the address is in use, or the token is too weak.
        JobFailedError: the master did not start.
    """
    token = environment_token(listen)
    return _start(folder.create(config), token=token, listen=listen, follows=follows)


def find_or_start(
    config: JobConfig, *, endpoint: str, follows: bool, names: Sequence[str] = ()
) -> JobMaster:
    """Return the master at ``endpoint``; start one if the endpoint is free and on this machine.

    If the master there belongs to an ended job, wait until it leaves.

    Args:
        endpoint: ``host:port``, or :data:`ANY_PORT`.
        names: possible names of the job; a new job gets the first free name. Empty: that of
            ``config``.

    Raises:
        UsageError: the master cannot be started, its token is unknown or too weak, or it has
            another job.
        JobFailedError: the master did not start.
    """
    environment_token(endpoint)
    if not is_local(endpoint):
        return JobMaster(address=endpoint, token=named_token(endpoint))
    if problem := unreachable(endpoint):
        log.warning("%s: %s", endpoint, problem)
    names = names or [config.name]
    place = names[0] if endpoint == ANY_PORT else f"port-{split(endpoint)[1]}"
    with folder.one_at_a_time(place):
        found = _find(endpoint, names)
        if isinstance(found, JobFolder):
            found = _restart(found, config, endpoint, follows=follows)
        if found is None:
            with folder.one_at_a_time("start"):
                free = [name for name in names if not JobFolder(name).is_running()]
                new = dataclasses.replace(config, name=[*free, *names][0])
                found = start(new, listen=endpoint, follows=follows)
        presence = JobFolder(found.job).take_part() if found.job else None
        return dataclasses.replace(found, presence=presence)


def unreachable(endpoint: str) -> str:
    """Return why no other machine reaches a master at an endpoint of this machine, with advice;
    empty if others may reach it, or if the endpoint is meant for this machine only."""
    if not (is_remote(endpoint) and is_loopback_name(endpoint)):
        return ""
    return (
        f"{split(endpoint)[0]} is a loopback address on this machine (see /etc/hosts), so no other "
        "machine reaches the master; name an address of this machine that others reach"
    )


def _start(job: JobFolder, *, token: str, listen: str, follows: bool) -> JobMaster:
    hosted = MasterProcess(job, token=token, listen=listen, follows=follows)
    try:
        address = hosted.start_and_listen()
    except BaseException:
        hosted.close()
        raise
    return JobMaster(address=address, token=hosted.token, hosted=hosted, job=job.name)


def _restart(job: JobFolder, config: JobConfig, endpoint: str, *, follows: bool) -> JobMaster:
    """Restart the master of a job whose nodes wait for it, because its starter is lost.

    A new job instead would be a second group that does the same training.
    """
    master = job.master()
    assert master is not None, f"nodes of {job.name} found a master"
    named = os.environ.get(ENV_TOKEN)
    if named and named != master.token:
        raise UsageError(
            f"{ENV_TOKEN}: not the token of job {job.name}, whose nodes wait for its master; "
            f"end them first, or unset {ENV_TOKEN} to continue with them"
        )
    begun = job.config()
    if begun.experiment is not None and config.experiment is not None:
        begun.experiment.require(config.experiment, job.name)
    log.warning("job %s lost its master, and nodes wait for it: starting it again", job.name)
    listen = master.address if endpoint == ANY_PORT else endpoint
    return _start(job, token=master.token, listen=listen, follows=follows)


def _find(endpoint: str, names: Sequence[str]) -> JobMaster | LocalJob | None:
    """Return the master of a job of this machine, or a job that has nodes but no master; None if
    the endpoint is free."""
    began = time.monotonic()
    told = ""
    while (job := _job_at(endpoint, names)) is not None or is_listening(endpoint):
        waited_s = time.monotonic() - began
        if job is None:
            if waited_s > _UNKNOWN_S:
                return JobMaster(address=endpoint, token=named_token(endpoint))
            time.sleep(_LOOK_S)
            continue
        status, master = job.status(), job.master()
        if status is not None and master is not None and status.state not in _OVER:
            if job.name in names:
                token = os.environ.get(ENV_TOKEN) or master.token
                return JobMaster(address=master.address, token=token, job=job.name)
            raise _not_ours(endpoint, f"job {job.name} listens there", names)
        if not job.has_master() and job.last_status().get("state") not in _OVER:
            if job.name in names:
                return job
            raise _not_ours(endpoint, f"nodes of job {job.name} wait there for it", names)
        how = "does not answer" if status is None else "is over"
        if waited_s > _LEAVES_S:
            raise UsageError(
                f"{endpoint}: job {job.name} {how}, and its master has not left after "
                f"{_LEAVES_S:.0f} s; choose another port, or end it with torch-edl stop {job.name}"
            )
        if waited_s > _PATIENCE_S and job.name != told:
            log.warning("%s: job %s %s: waiting for its master to leave", endpoint, job.name, how)
            told = job.name
        time.sleep(_LOOK_S)
    return None


def _not_ours(endpoint: str, who: str, names: Sequence[str]) -> UsageError:
    return UsageError(
        f"{endpoint}: {who}, not job {names[0]}; choose another port, or name the same --rdzv-id, "
        "script and arguments to join it"
    )


def _job_at(endpoint: str, names: Sequence[str]) -> LocalJob | None:
    """Return this user's job whose master is at an endpoint of this machine, or will be restarted
    there; for :data:`ANY_PORT`, the running job with one of these names."""
    if endpoint == ANY_PORT:
        return next((job for job in map(LocalJob, names) if job.is_running()), None)
    for job in folder.all_jobs():
        master = job.master()
        if master is not None and is_same(endpoint, master.address) and job.is_running():
            return LocalJob(job.name)
    return None


def environment_token(endpoint: str) -> str:
    """Return the token of the environment for a job at an endpoint; empty if there is none.

    Raises:
        UsageError: the token is too weak for connections of other machines.
    """
    token = os.environ.get(ENV_TOKEN, "")
    if token:
        require_strong(token, endpoint)
    return token


def named_token(endpoint: str) -> str:
    """Return the token of the environment for the master at an endpoint.

    Raises:
        UsageError: there is none, or it is too weak for connections of other machines.
    """
    token = environment_token(endpoint)
    if token:
        return token
    raise UsageError(
        f"{endpoint}: something listens there that is no job of this user; choose another port, "
        f"or set {ENV_TOKEN} to one secret text for all machines if it is their master"
        if is_local(endpoint)
        else f"{endpoint}: the token of the job is not known here; set {ENV_TOKEN} to one secret "
        "text on all machines before the commands start"
    )
