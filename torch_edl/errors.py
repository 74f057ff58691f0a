"""All exceptions of the project.

Errors that the user can fix derive from :class:`UsageError` and read ``value: what is wrong; the
fix``.
"""

from __future__ import annotations

from collections.abc import Iterable


def describe_error(error: BaseException) -> str:
    """Return type and text of an exception of the user's code, on one line unless its text has
    several."""
    if isinstance(error, SystemExit):
        return f"SystemExit: it called sys.exit({error.code!r})"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class EdlError(Exception):
    """Base of all exceptions raised by torch-edl."""


class UsageError(EdlError, ValueError):
    """An input of the user is invalid; the message names the value and the fix."""


class ContractError(UsageError):
    """The model file breaks the contract: a function is missing, returns a wrong value, ..."""


class DataError(UsageError):
    """A data file cannot be read: ``path``, and the byte ``offset`` of the damage if known."""

    def __init__(self, path: str, reason: str, offset: int | None = None) -> None:
        where = path if offset is None else f"{path} at byte {offset}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.reason = reason
        self.offset = offset


class UnsupportedOptimizerError(UsageError):
    """The parameter servers have no kernel for this torch optimizer."""


class CheckpointError(EdlError):
    """A checkpoint is missing, incomplete or damaged."""


class JournalDamagedError(EdlError):
    """A record of a journal, before its torn tail, differs from what was written."""


class StateLostError(EdlError):
    """Acknowledged updates of a server are lost: the model is restored from its checkpoint."""


class StoreConflictError(EdlError):
    """A compare-and-set failed: another writer changed the key or holds the lock."""


class StaleIncarnationError(EdlError):
    """The caller knows an earlier incarnation of the servers; it must ask the master for the
    current ones."""


class ServersLostError(EdlError):
    """A parameter server did not answer, or has another incarnation; the caller must ask the master
    for the current servers."""


class ServersReplacedError(ServersLostError):
    """The model is on other servers, and the master has logged the reason."""


class MinibatchError(EdlError):
    """A minibatch cannot be computed.

    Args:
        sample: index of the sample in the minibatch that caused the error; None if unknown.
    """

    def __init__(self, text: str, sample: int | None = None) -> None:
        super().__init__(text)
        self.sample = sample


class UserCodeError(MinibatchError):
    """The user's model or loss raised an exception, which is the cause of this one."""


class NanLossError(MinibatchError):
    """The loss of a minibatch is not finite, and ``--on-nan`` makes this an error."""


class JobFailedError(EdlError):
    """The job ended without processing every record; the message is the first cause."""


class ScriptFailedError(JobFailedError):
    """A worker of a training script without torch_edl failed.

    Args:
        code: exit code of the first worker that failed, or the negative number of its signal.
    """

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


class MasterLostError(EdlError):
    """The master is unreachable."""


class DismissedError(EdlError):
    """The job continues without this process, or is over.

    Args:
        last: True if no other process has the model.
    """

    def __init__(self, text: str, *, last: bool = False) -> None:
        super().__init__(text)
        self.last = last


class TrainingOverError(EdlError):
    """The other processes of a script have completed the training that this process begins.

    Args:
        checkpoint: path of the last checkpoint of the training.
        results: values that the processes of a training on servers computed together. Each is a
            tuple (loops over loaders that had begun, number of the value since then from 1, JSON).
            Empty for a ring, whose checkpoint contains the values.
    """

    def __init__(self, checkpoint: str, results: Iterable[tuple[int, int, str]] = ()) -> None:
        super().__init__(f"the training is over; its model is in {checkpoint}")
        self.checkpoint = checkpoint
        self.results = list(results)


class DeclaredLostError(DismissedError):
    """The master declared this process lost, and the job replaces it."""
