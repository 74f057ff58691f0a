"""The master of a job of agents: who starts it, who finds it, and who starts it again.

The first agent that needs a master at an address of its own machine starts one there. Locks on the
port, and on the start of any, keep two agents that begin at the same moment from both doing so. No
torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from torch_edl.config import JobConfig
from torch_edl.environment import ENV_MASTER, ENV_NODE, ENV_TOKEN
from torch_edl.errors import EdlError, JobFailedError, UsageError
from torch_edl.jobs import calls, catalog
from torch_edl.jobs.folder import ENDED, JobFolder, jobs_home
from torch_edl.jobs.log_tail import last_error, last_lines
from torch_edl.processes.base import ProcessExit, ProcessSpec
from torch_edl.processes.local import LocalLauncher

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
ANY_PORT = f"{LOOPBACK}:0"
"""An endpoint for agents of this machine, who find the master by the name of the job."""

_LISTEN_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 1.0
_POLL_S = 0.02
_LOOK_S = 0.1
# The master of a job that is over is waited for so long, and without a word so long.
_LEAVES_S = 60.0
_PATIENCE_S = 2.0
# Who listens, but is not known to be a master of ours, may be about to say so.
_UNKNOWN_S = 2.0
_OVER = ("finishing", *ENDED)
_USAGE_CODE = 2
# A master that dies as often without an agent reaching it in between will not come up.
_MAX_STARTS_IN_A_ROW = 5


@dataclass(frozen=True, kw_only=True)
class Master:
    """Where a job's master is, and the one that this process hosts, if it does."""

    address: str
    token: str
    hosted: HostedMaster | None = None
    job: str = ""
    """Its name; empty: the folder of the job is on another machine, or another user's."""
    presence: BinaryIO | None = None
    """Says on this machine that an agent of the job lives, until this is closed."""

    def environment(self, node: str) -> dict[str, str]:
        """What a worker needs to find it, with the name of the agent that started the worker."""
        return {ENV_MASTER: self.address, ENV_TOKEN: self.token, ENV_NODE: node}


class HostedMaster:
    """The master as a child of this process, started again at its address when it is lost.

    Must be used from the main thread, as :class:`LocalLauncher`.

    Args:
        listen: ``host:port``; port 0 takes a free one, and keeps it.
        follows: it ends with this process. False: it lives until it finds that all agents left.
    """

    def __init__(self, job: JobFolder, *, token: str, listen: str, follows: bool = True) -> None:
        self._job = job
        self._token = token
        self._listen = listen
        self._follows = follows
        self._launcher = LocalLauncher(job.logs)
        # While this process may start it again, nobody takes its place for free.
        self._hold = job.hold()
        self._starts_in_a_row = 0
        self._stopping = False
        self.pid = 0
        """Of the one that runs; 0 when it is gone."""
        self.exit: ProcessExit | None = None
        """How the last one ended."""

    def start(self) -> str:
        """Starts it and waits until it listens; returns its address.

        Raises:
            UsageError: it cannot begin, and says why.
            JobFailedError: it ended, or did not begin to listen in time.
        """
        self._launch()
        deadline = time.monotonic() + _LISTEN_TIMEOUT_S
        while time.monotonic() < deadline:
            address = self._job.master()
            if address is not None and address.pid == self.pid:
                self._listen = address.address
                return address.address
            for ended in self._launcher.poll():
                self.pid, self.exit = 0, ended
                raise self._cannot_begin(ended)
            time.sleep(_POLL_S)
        self.stop(grace_s=0)
        raise JobFailedError(
            f"the master of {self._job.name} does not listen after {_LISTEN_TIMEOUT_S:.0f} s; "
            f"see {self._log_path()}"
        )

    def heard(self) -> None:
        """It answered somebody: what goes wrong from now on is a new failure."""
        self._starts_in_a_row = 0

    def revive(self) -> ProcessExit | None:
        """Starts it again if a signal ended it. Call this whenever it may have ended.

        Returns:
            How it ended where it is not started again: its job is over.
        """
        for ended in self._launcher.poll():
            self.pid, self.exit = 0, ended
            if self._stopping or ended.signal is None:
                return ended
            if self._starts_in_a_row >= _MAX_STARTS_IN_A_ROW:
                log.error("the master ended %d times in a row (%s)", self._starts_in_a_row, ended)
                return ended
            log.warning("the master ended (%s); starting it again at %s", ended, self._listen)
            self._launch()
        return None

    def stop(self, *, grace_s: float) -> None:
        """SIGTERM, SIGKILL ``grace_s`` later; returns when it is gone."""
        self._stopping = True
        self._launcher.stop_all(grace_s=grace_s)
        self.pid = 0
        self._hold.close()

    def wait(self, timeout_s: float) -> None:
        """Waits for it to leave by itself, which it does when its job is over. It is not started
        again from now on."""
        deadline = time.monotonic() + timeout_s
        self._stopping = True
        while self.pid and time.monotonic() < deadline:
            self.revive()
            time.sleep(_POLL_S)
        self._hold.close()

    def cause(self) -> str:
        """What it last complained of, if it could; empty if it did not."""
        return last_error(self._log_path()) or self._job.no_room()

    def _launch(self) -> None:
        self._starts_in_a_row += 1
        self.pid = self._launcher.start(
            ProcessSpec(
                role="master",
                id=0,
                module="master",
                args=["--job", self._job.name, "--listen", self._listen],
                env={ENV_TOKEN: self._token},
                follows=self._follows,
            )
        )

    def _cannot_begin(self, ended: ProcessExit) -> EdlError:
        cause = self.cause()
        if ended.code == _USAGE_CODE and cause:
            return UsageError(cause)
        tail = last_lines(self._log_path(), 15)
        return JobFailedError(f"the master of {self._job.name} ended ({ended}): {cause or tail}")

    def _log_path(self) -> str:
        return self._launcher.log_path("master", 0)


def host(config: JobConfig, *, listen: str = ANY_PORT, follows: bool = True) -> Master:
    """Starts the master of a new job on this machine.

    The token is that of the environment, if it names one, so that agents of other machines know
    it too.

    Raises:
        UsageError: a job of that name runs, or the address is taken.
        JobFailedError: it does not come up.
    """
    job = catalog.create(config)
    token = os.environ.get(ENV_TOKEN) or secrets.token_urlsafe(32)
    return _start(job, token=token, listen=listen, follows=follows)


def _start(job: JobFolder, *, token: str, listen: str, follows: bool) -> Master:
    hosted = HostedMaster(job, token=token, listen=listen, follows=follows)
    try:
        address = hosted.start()
    except BaseException:
        hosted.stop(grace_s=0)
        raise
    return Master(address=address, token=token, hosted=hosted, job=job.name)


def host_or_find(
    config: Callable[[str], JobConfig], *, names: Sequence[str], endpoint: str, follows: bool
) -> Master:
    """The master at ``endpoint``: the one that is there, else a new one if that is this machine.

    One whose job is over leaves soon, and is waited for.

    Args:
        config: makes the configuration of the job of a name, should it be new.
        names: what the job may be called; a new one gets the first that no other job has.
        endpoint: ``host:port``, or :data:`ANY_PORT`.

    Raises:
        UsageError: it cannot be hosted, its token is not known here, or it is another job's.
        JobFailedError: it does not come up.
    """
    if not is_local(endpoint):
        return Master(address=endpoint, token=_named_token(endpoint))
    place = names[0] if endpoint == ANY_PORT else f"port-{split(endpoint)[1]}"
    with _one_at_a_time(place):
        found = _find(endpoint, names)
        if isinstance(found, JobFolder):
            found = _succeed(found, config(found.name), endpoint, follows=follows)
        if found is None:
            with _one_at_a_time("start"):
                free = [name for name in names if not JobFolder(name).is_running()]
                found = host(config([*free, *names][0]), listen=endpoint, follows=follows)
        presence = JobFolder(found.job).take_part() if found.job else None
        return dataclasses.replace(found, presence=presence)


def _succeed(job: JobFolder, config: JobConfig, endpoint: str, *, follows: bool) -> Master:
    """Starts the master again of a job whose agents wait for it, since who hosted it is lost.

    A new job beside them would be a second group that trains the same.

    Raises:
        UsageError: this agent is not one of that job.
        JobFailedError: it does not come up.
    """
    address = job.master()
    assert address is not None, f"agents of {job.name} found a master"
    named = os.environ.get(ENV_TOKEN)
    if named and named != address.token:
        raise UsageError(
            f"{ENV_TOKEN}: not the token of job {job.name}, whose agents wait for its master; "
            f"end them first, or unset {ENV_TOKEN} to go on with them"
        )
    begun = job.config()
    if begun.experiment is not None and config.experiment is not None:
        begun.experiment.require(config.experiment, job.name)
    log.warning("job %s lost its master, and agents wait for it: starting it again", job.name)
    listen = address.address if endpoint == ANY_PORT else endpoint
    return _start(job, token=address.token, listen=listen, follows=follows)


def _find(endpoint: str, names: Sequence[str]) -> Master | JobFolder | None:
    """The master of a job of this machine; a job that has agents and no master; None: the place
    is free."""
    began = time.monotonic()
    told = ""
    while (job := _job_at(endpoint, names)) is not None or _is_listening(endpoint):
        waited_s = time.monotonic() - began
        if job is None:
            if waited_s > _UNKNOWN_S:
                return Master(address=endpoint, token=_named_token(endpoint))
            time.sleep(_LOOK_S)
            continue
        status, address = calls.get_status(job), job.master()
        if status is not None and address is not None and status.state not in _OVER:
            if job.name in names:
                token = os.environ.get(ENV_TOKEN) or address.token
                where = address.address if endpoint == ANY_PORT else endpoint
                return Master(address=where, token=token, job=job.name)
            raise _not_ours(endpoint, f"job {job.name} listens there", names)
        if not job.has_master() and job.last_status().get("state") not in _OVER:
            if job.name in names:
                return job
            raise _not_ours(endpoint, f"agents of job {job.name} wait there for it", names)
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


def _job_at(endpoint: str, names: Sequence[str]) -> JobFolder | None:
    """The job of this user that has its master at an address of this machine, or is about to
    start it there again; at any port: the one of these names."""
    if endpoint == ANY_PORT:
        return next((job for job in map(JobFolder, names) if job.is_running()), None)
    host, port = split(endpoint)
    for job in catalog.all_jobs():
        address = job.master()
        if address is None or split(address.address)[1] != port:
            continue
        if _addresses(host) & _addresses(split(address.address)[0]) and job.is_running():
            return job
    return None


def _addresses(host: str) -> set[str]:
    with contextlib.suppress(OSError):
        return {str(found[4][0]) for found in socket.getaddrinfo(host, 0)}
    return set()


def is_local(endpoint: str) -> bool:
    """Whether ``host:port`` names an address of this machine."""
    name, _ = split(endpoint)
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        # Only an address of this machine can be bound; nothing is sent.
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def own_address(endpoint: str) -> str:
    """How other machines reach this one: by the way that leads to the master at ``endpoint``."""
    host, port = split(endpoint)
    if is_local(endpoint):
        return host
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
    return socket.getfqdn()


def split(endpoint: str) -> tuple[str, int]:
    """``host:port`` in its two parts; brackets around an IPv6 address are removed.

    Raises:
        UsageError: it is not of that form.
    """
    name, colon, port = endpoint.rpartition(":")
    if not (colon and name and port.isdecimal()):
        raise UsageError(f"{endpoint}: not an endpoint; write HOST:PORT, such as node0:29400")
    return name.strip("[]"), int(port)


def _is_listening(endpoint: str) -> bool:
    try:
        with socket.create_connection(split(endpoint), timeout=_CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False


def _named_token(endpoint: str) -> str:
    token = os.environ.get(ENV_TOKEN)
    if token:
        return token
    raise UsageError(
        f"{endpoint}: something listens there that is no job of this user; choose another port, "
        f"or set {ENV_TOKEN} to one secret text for all agents if it is their master"
        if is_local(endpoint)
        else f"{endpoint}: the token of the job is not known here; set {ENV_TOKEN} to one secret "
        "text on all machines before the agents start"
    )


@contextlib.contextmanager
def _one_at_a_time(what: str) -> Iterator[None]:
    folder = jobs_home()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".{what}.lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
