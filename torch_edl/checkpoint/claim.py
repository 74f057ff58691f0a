"""A folder of checkpoints belongs to one run of a job at a time.

``DIR/.owner.json`` names the run that has the folder. Each process of that run that commits
checkpoints holds a shared lock on the file until it ends, however it ends, and a run takes the
folder over by an exclusive lock. So the folder of a run that was killed is free at once, and a
restarted master finds the folder of its own run.

Some file systems (object stores that are mounted) do not tell other machines of a lock. There the
later run takes the folder over, and the earlier one finds that before its next commit, which fails.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import time
import weakref
from pathlib import Path

from torch_edl.errors import CheckpointError, UsageError
from torch_edl.files import sync

log = logging.getLogger(__name__)

OWNER_FILE = ".owner.json"

_PATIENCE_S = 2.0
"""Seconds in which processes that were killed are gone, and other runs have looked at the lock."""
_POLL_S = 0.05
_MOST_BYTES = 1024
_RUN_DIGITS = 16
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)

_held: weakref.WeakSet[Claim] = weakref.WeakSet()


def run_id(job: str, secret: str) -> str:
    """The name of a run of a job; it does not reveal the secret, which all processes of the run
    know."""
    return hashlib.sha256(f"{job}\n{secret}".encode()).hexdigest()[:_RUN_DIGITS]


def require_free(root: str | Path, *, option: str = "--checkpoint-dir ") -> None:
    """Raises UsageError if a running job has the folder. Nothing is written.

    Args:
        option: of the user, which names the folder.
    """
    try:
        file = os.open(Path(root) / OWNER_FILE, os.O_RDONLY)
    except OSError:  # of no job yet
        return
    try:
        _lock_exclusively(file, Path(root), option)
    finally:
        os.close(file)


class Claim:
    """The right of a run to write checkpoints to a folder, until :meth:`release` or the end of the
    process.

    Args:
        root: the folder, which is made.
        job: name of the job, for messages.
        run: see :func:`run_id`; processes of the same run share the folder.
        option: of the user, which names the folder.

    Raises:
        UsageError: another run has the folder, and one of its processes lives.
        OSError: the folder cannot be made or written.
    """

    def __init__(
        self, root: str | Path, *, job: str, run: str, option: str = "--checkpoint-dir "
    ) -> None:
        self.run = run
        self.continues = False
        """This run had the folder before."""
        self._root = Path(root)
        self._path = self._root / OWNER_FILE
        self._job = job
        self._option = option
        self._file = -1
        self._take()
        _held.add(self)

    def _take(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
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
                # The kernel lets go of the one lock before it takes the other, so another run may
                # have written meanwhile.
                _lock(self._file, fcntl.LOCK_SH, waits=True)
                if _run_in(self._file) == self.run:
                    break
            sync(self._root)
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Makes sure that the folder still belongs to this run, right before a commit.

        Raises:
            CheckpointError: another run has taken the folder.
        """
        try:
            if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                owner = json.loads(self._path.read_bytes())
                if owner["run"] == self.run:
                    return
                raise CheckpointError(
                    f"{self._root}: belongs to the job {owner['job']} now, which was started with "
                    f"this folder later; start {self._job} again with a folder of its own"
                )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            pass
        # The user has removed what was in the folder, or the folder itself.
        self.release()
        try:
            self._take()
        except UsageError as error:
            raise CheckpointError(str(error)) from None

    def release(self) -> None:
        """Lets another run take the folder, once no other process of this run holds it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.release()


def _after_fork() -> None:
    """A child that outlives its parent, such as a worker of a DataLoader, keeps no folder."""
    for claim in _held:
        claim.release()


os.register_at_fork(after_in_child=_after_fork)


def _lock_exclusively(file: int, root: Path, option: str, unless: str = "") -> None:
    """Waits a moment for the lock.

    Args:
        unless: a run; returns without the lock once the folder belongs to that run.

    Raises:
        UsageError: another process holds it.
    """
    until = time.monotonic() + _PATIENCE_S
    while not _lock(file, fcntl.LOCK_EX):
        if unless and _run_in(file) == unless:
            return
        if time.monotonic() >= until:
            owner = _owner(file)
            raise UsageError(
                f"{option}{root}: belongs to the job {owner.get('job') or 'of another process'}, "
                f"which runs (process {owner.get('pid', 'unknown')}); choose another folder, "
                "or wait for the end of that job and resume from its checkpoint"
            )
        time.sleep(_POLL_S)


def _lock(file: int, kind: int, *, waits: bool = False) -> bool:
    """Whether the lock was taken."""
    try:
        fcntl.flock(file, kind if waits else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _owner(file: int) -> dict[str, object]:
    """What the file says of its owner; empty: it is new, or damaged."""
    with contextlib.suppress(ValueError):
        found = json.loads(os.pread(file, _MOST_BYTES, 0))
        if isinstance(found, dict):
            return found
    return {}


def _run_in(file: int) -> object:
    return _owner(file).get("run")
