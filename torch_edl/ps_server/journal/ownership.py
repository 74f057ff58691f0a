"""Which server a journal belongs to: beside ``journal.json``, which says which journal it is, its
folder has one folder ``incarnation-NUMBER``, named after the server that owns it.

A successor renames that folder before it reads. From this moment on an earlier server that was only
paused, or cut off from the master, finds none of its paths: it cannot begin or delete a segment nor
commit a snapshot, and it looks for the folder before it acknowledges. What it still writes to a
segment that it has open is superseded by the first segment of the successor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path

from torch_edl.errors import JournalDamagedError, StaleIncarnationError, UsageError
from torch_edl.files import rename, sync_tree
from torch_edl.ps_server.identity import JournalIdentity

_IDENTITY = "journal.json"
_TRIES = 1000  # each is lost to another server, so a few are enough
_FOLDER = re.compile(r"incarnation-(\d+)")


def find(root: Path) -> tuple[int, Path] | None:
    """The incarnation of the owner, and its folder; None for moments, while it changes."""
    for path in root.iterdir():
        match = _FOLDER.fullmatch(path.name)
        if match:
            return int(match[1]), path
    return None


class Ownership:
    """Takes the journal under ``root`` for one server, or begins one.

    Args:
        incarnation: of the server, from 1; no other server of the job ever has the same.

    Raises:
        StaleIncarnationError: a later server has the journal.
        UsageError: the folder holds another journal, or something else.
        JournalDamagedError: the description of the journal cannot be understood.
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
        """Raises StaleIncarnationError if a later server has taken the journal."""
        if not self.folder.exists():
            raise StaleIncarnationError(
                f"{self.folder}: gone; a later server has taken the shard over, and this one ends"
            )


def _begin(root: Path, identity: JournalIdentity) -> None:
    """Makes the folder of a journal that nobody owns, unless another server is faster."""
    temporary = root.with_name(f".{root.name}.{os.urandom(4).hex()}.part")
    (temporary / "incarnation-0").mkdir(parents=True)
    try:
        (temporary / _IDENTITY).write_text(identity.to_json(), encoding="utf-8")
        sync_tree(temporary)
        rename(temporary, root)  # in place of an empty folder, or of none
    except OSError as error:
        shutil.rmtree(temporary)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def require(root: Path, identity: JournalIdentity) -> None:
    """Raises UsageError or JournalDamagedError unless the folder holds that journal."""
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
