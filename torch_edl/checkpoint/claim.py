"""Claims on checkpoint directories: a directory belongs to one run of a job at a time.

``DIR/.owner.json`` names the run that owns the directory. Each process of that run that commits
checkpoints holds a shared lock on the file until the process ends, and a run takes over the
directory by an exclusive lock. So the directory of a killed run is free at once, and a restarted
master regains the directory of its own run.

Some file systems (mounted object stores) do not share locks between machines. There, a later run
takes over the directory, and the earlier one detects this before its next commit, which fails.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import time
import weakref
from pathlib import Path
from typing import TypedDict

from torch_edl.checkpoint.durable import sync
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.typed_json import Count, parse

log = logging.getLogger(__name__)

OWNER_FILE = ".owner.json"

_PATIENCE_S = 2.0
"""Seconds to wait for a lock: killed processes may still be exiting, and other runs may hold the
lock briefly to look at it."""
_POLL_S = 0.05
_MOST_BYTES = 1024
_RUN_DIGITS = 16
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
# Errors of opening a symbolic link, a folder, or a socket.
_NO_FILE = (errno.ELOOP, errno.EISDIR, errno.ENXIO)

_held: weakref.WeakSet[Claim] = weakref.WeakSet()


def run_id(job: str, secret: str) -> str:
    """Return the name of a run of a job. It does not reveal ``secret``, which all processes of the
    run know."""
    return hashlib.sha256(f"{job}\n{secret}".encode()).hexdigest()[:_RUN_DIGITS]


def require_free(root: str | Path) -> None:
    """Raise UsageError if a running job owns the directory of ``--checkpoint-dir``, or if the
    directory cannot be claimed. Nothing is written."""
    try:
        file = _open(Path(root), "--checkpoint-dir ", os.O_RDONLY)
    except OSError:  # not claimed yet
        return
    try:
        _lock_exclusively(file, Path(root), "--checkpoint-dir ")
    finally:
        os.close(file)


class _Owner(TypedDict):
    """The content of the file."""

    job: str
    run: str
    pid: Count


class Claim:
    """The right of a run to write checkpoints to a directory, until :meth:`release` or the end of
    the process.

    Args:
        root: the directory, which is created if missing.
        job: name of the job, for messages.
        run: see :func:`run_id`; processes of the same run share the directory.
        option: option of the user that names the directory, for messages.

    Raises:
        UsageError: another run owns the directory, and one of its processes is running; or
            ``.owner.json`` is a symbolic link or no file.
        OSError: the directory cannot be created or written.
    """

    def __init__(
        self, root: str | Path, *, job: str, run: str, option: str = "--checkpoint-dir "
    ) -> None:
        self.run = run
        self.continues = False
        """True if this run owned the directory before."""
        self._root = Path(root)
        self._path = self._root / OWNER_FILE
        self._job = job
        self._option = option
        self._file = -1
        self._take()
        _held.add(self)

    def _take(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        self._file = _open(self._root, self._option, os.O_RDWR | os.O_CREAT)
        try:
            while True:
                if _run_in(self._file) == self.run and _lock(self._file, fcntl.LOCK_SH):
                    self.continues = True
                    break
                _lock_exclusively(self._file, self._root, self._option, unless=self.run)
                if _run_in(self._file) != self.run:
                    about = {"job": self._job, "run": self.run, "pid": os.getpid()}
                    os.pwrite(self._file, json.dumps(about).encode().ljust(_MOST_BYTES), 0)
                    os.fsync(self._file)
                # The kernel releases the exclusive lock before it takes the shared one, so another
                # run may have written in between.
                _lock(self._file, fcntl.LOCK_SH, waits=True)
                if _run_in(self._file) == self.run:
                    break
            sync(self._root)
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Check that the directory still belongs to this run, right before a commit.

        Raises:
            CheckpointError: another run has taken over the directory.
        """
        owner: _Owner | None = None
        with contextlib.suppress(FileNotFoundError):
            try:
                # Opened again: a network file system may have cached the content of an open file.
                file = _open(self._root, self._option, os.O_RDONLY)
            except UsageError as error:
                raise CheckpointError(str(error)) from None
            with open(file, "rb") as same:
                if os.path.samestat(os.fstat(same.fileno()), os.fstat(self._file)):
                    owner = _owner(same.fileno())
        if owner is not None:
            if owner["run"] == self.run:
                return
            raise CheckpointError(
                f"{self._root}: belongs to the job {owner['job']} now, which was started with "
                f"this folder later; start {self._job} again with a folder of its own"
            )
        # The user has removed the directory or its content.
        self.release()
        try:
            self._take()
        except UsageError as error:
            raise CheckpointError(str(error)) from None

    def release(self) -> None:
        """Release the lock of this process. Another run can claim the directory once all processes
        of this run have released it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.release()


def _after_fork() -> None:
    """Release the claims in a forked child, which may outlive its parent, such as a worker of a
    DataLoader."""
    for claim in _held:
        claim.release()


os.register_at_fork(after_in_child=_after_fork)


def _open(root: Path, option: str, flags: int) -> int:
    """Return the open file of the owner. The folder may be reached through a symbolic link. The
    file may not be a symbolic link: this module would overwrite the beginning of its target.

    Raises:
        UsageError: the name is that of a symbolic link, a folder, a pipe or a device.
        OSError: the file does not exist or cannot be opened.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for its other end.
        file = os.open(root / OWNER_FILE, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if stat.S_ISREG(os.fstat(file).st_mode):
            return file
        os.close(file)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
    raise UsageError(
        f"{option}{root}: {OWNER_FILE} there is not a file of a job but a link, a folder, a pipe "
        "or a device; remove it, or choose another folder"
    )


def _lock_exclusively(file: int, root: Path, option: str, unless: str = "") -> None:
    """Acquire the exclusive lock, within a short wait.

    Args:
        unless: a run; returns without the lock once the directory belongs to that run.

    Raises:
        UsageError: another process holds the lock.
    """
    until = time.monotonic() + _PATIENCE_S
    while not _lock(file, fcntl.LOCK_EX):
        if unless and _run_in(file) == unless:
            return
        if time.monotonic() >= until:
            owner = _owner(file)
            job, pid = (owner["job"], owner["pid"]) if owner else ("of another process", "unknown")
            raise UsageError(
                f"{option}{root}: belongs to the job {job}, "
                f"which runs (process {pid}); choose another folder, "
                "or wait for the end of that job and resume from its checkpoint"
            )
        time.sleep(_POLL_S)


def _lock(file: int, kind: int, *, waits: bool = False) -> bool:
    """Return whether the lock was acquired; True if the file system has no locks."""
    try:
        fcntl.flock(file, kind if waits else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _owner(file: int) -> _Owner | None:
    """Return the owner that the file names; None if the file is new or damaged."""
    with contextlib.suppress(ValueError):
        return parse(os.pread(file, _MOST_BYTES, 0), _Owner)
    return None


def _run_in(file: int) -> str:
    owner = _owner(file)
    return owner["run"] if owner is not None else ""
