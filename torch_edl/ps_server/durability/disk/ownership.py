"""Ownership of a journal. Besides ``journal.json``, which identifies the journal, its folder has
one folder ``incarnation-NUMBER``, named after the server that owns it.

A successor renames that folder before it reads. From then on, an earlier server that was paused or
disconnected finds none of its paths: it cannot begin or delete a segment or commit a snapshot, and
it checks the folder before it acknowledges. Its writes to an open segment are superseded by the
first segment of the successor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path

from torch_edl.checkpoint.durable import rename, sync_tree
from torch_edl.errors import JournalDamagedError, StaleIncarnationError, UsageError
from torch_edl.ps_server.durability.identity import JournalIdentity

_IDENTITY = "journal.json"
_TRIES = 1000  # each failure means that another server was faster
_FOLDER = re.compile(r"incarnation-(\d+)")


def find(root: Path) -> tuple[int, Path] | None:
    """Return the incarnation and folder of the owner; None briefly, while the owner changes."""
    for path in root.iterdir():
        match = _FOLDER.fullmatch(path.name)
        if match:
            return int(match[1]), path
    return None


class Ownership:
    """The ownership of the journal under ``root`` by one server; begins a journal in an empty
    folder.

    Args:
        incarnation: incarnation of the server, from 1 and unique in the job.

    Raises:
        StaleIncarnationError: a later server has the journal.
        UsageError: the folder holds another journal, or other files.
        JournalDamagedError: the description of the journal cannot be read.
        OSError: the folder cannot be made, read or written.
    """

    def __init__(self, root: Path, identity: JournalIdentity, incarnation: int) -> None:
        self.folder = root / f"incarnation-{incarnation}"
        if not root.exists() or not any(root.iterdir()):
            _begin(root, identity)
        require(root, identity)
        for _ in range(_TRIES):
            owner, path = find(root) or (0, root / "missing")
            if owner >= incarnation:
                raise StaleIncarnationError(
                    f"{root}: belongs to the server of incarnation {owner}, this server has "
                    f"incarnation {incarnation}: a later server has taken the shard over"
                )
            with contextlib.suppress(FileNotFoundError):  # another server was faster
                rename(path, self.folder)
                return
        raise JournalDamagedError(f"{root}: its folder incarnation-NUMBER is missing")

    def check(self) -> None:
        """Raise StaleIncarnationError if a later server has taken over the journal."""
        if not self.folder.exists():
            raise StaleIncarnationError(
                f"{self.folder}: gone; a later server has taken the shard over, and this one ends"
            )


def _begin(root: Path, identity: JournalIdentity) -> None:
    """Make the folder of a journal without an owner, unless another server was faster."""
    temporary = root.with_name(f".{root.name}.{os.urandom(4).hex()}.part")
    (temporary / "incarnation-0").mkdir(parents=True)
    try:
        (temporary / _IDENTITY).write_text(identity.to_json(), encoding="utf-8")
        sync_tree(temporary)
        rename(temporary, root)  # replaces an empty folder
    except OSError as error:
        shutil.rmtree(temporary)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def require(root: Path, identity: JournalIdentity) -> None:
    """Raise UsageError or JournalDamagedError unless the folder holds this journal."""
    path = root / _IDENTITY
    try:
        identity.require(path.read_bytes(), root)
    except FileNotFoundError:
        raise UsageError(
            f"{root}: holds other files than a journal, {_IDENTITY} is missing; choose another "
            "folder"
        ) from None
    except (KeyError, TypeError) as error:
        raise JournalDamagedError(f"{path}: {error}; it is damaged") from None
