"""Every exception of the project.

What a user can mend derives from :class:`UsageError` and reads ``value: what is wrong; the fix``.
"""

from __future__ import annotations


def describe_error(error: BaseException) -> str:
    """Type and text of what the user's code raised, in one line of a message."""
    if isinstance(error, SystemExit):
        return f"SystemExit: it called sys.exit({error.code!r})"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class EdlError(Exception):
    """Base of all exceptions raised by torch-edl."""


class UsageError(EdlError, ValueError):
    """Something the user wrote cannot work: the message names the value and the fix."""


class ContractError(UsageError):
    """The model file breaks the contract (a function is missing, returns the wrong thing, ...)."""


class DataError(UsageError):
    """A data file cannot be read: ``path``, and the byte ``offset`` of the damage where known."""

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
    """A record of a journal, before its last ones, is not as it was written."""


class StateLostError(EdlError):
    """What a server acknowledged is nowhere any more: the model returns to its checkpoint."""


class StoreConflictError(EdlError):
    """A compare-and-set lost: somebody else wrote the key, or holds the lock."""


class StaleIncarnationError(EdlError):
    """The caller belongs to an earlier life of the servers; it must ask the master again."""


class ServersLostError(EdlError):
    """A parameter server did not answer, or belongs to another life: ask the master again."""


class ServersReplacedError(ServersLostError):
    """The model is on other servers now, and the master has said why."""


class MinibatchError(EdlError):
    """A minibatch cannot be computed.

    Args:
        sample: index in the minibatch of the sample that is the cause; None: not known.
    """

    def __init__(self, text: str, sample: int | None = None) -> None:
        super().__init__(text)
        self.sample = sample


class UserCodeError(MinibatchError):
    """The user's model or loss raised; the exception is the cause."""


class NanLossError(MinibatchError):
    """The loss of a minibatch is not finite, and the user wants to stop then."""


class JobFailedError(EdlError):
    """The job ended without processing every record; the message is the first cause."""


class MasterLostError(EdlError):
    """The master does not answer any more."""


class DismissedError(EdlError):
    """The job continues without this process, or is over.

    Args:
        last: no other process has the model.
    """

    def __init__(self, text: str, *, last: bool = False) -> None:
        super().__init__(text)
        self.last = last


class DeclaredLostError(DismissedError):
    """The master declared this process lost: the job wants another one in its place."""
