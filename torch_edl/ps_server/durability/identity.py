"""Identity and owner of a journal. Its folder has ``journal.json``, which identifies the journal,
and one folder ``incarnation-NUMBER``, named after the server that owns it.

A successor renames that folder before it reads. From then on, an earlier server that was paused or
disconnected finds none of its paths: it cannot begin or delete a segment or commit a snapshot, and
it checks the folder before it acknowledges. Its writes to an open segment are superseded by the
first segment of the successor.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from torch_edl.checkpoint.durable import rename, sync_tree
from torch_edl.errors import JournalDamagedError, StaleIncarnationError, UsageError
from torch_edl.typed_json import parse

FORMAT = 4
_IDENTITY = "journal.json"
_TRIES = 1000  # each failure means that another server was faster
_FOLDER = re.compile(r"incarnation-(\d+)")
_NAMES = {
    "job": "job",
    "shard": "shard",
    "shards": "number of shards",
    "model": "incarnation of the model",
    "run": "run",
}


def _checksum(content: Mapping[str, Any]) -> int:
    return crc32(json.dumps(content).encode())


@dataclass(frozen=True, kw_only=True)
class JournalIdentity:
    """The identity of one journal: of one shard, for one incarnation of the model."""

    job: str
    shard: int
    shards: int
    model: int
    """Incarnation of the model, which increases when the job returns to a checkpoint."""
    run: str = ""
    """Run of the job, see :func:`~torch_edl.checkpoint.claim.run_id`; empty if no other process
    reads the journal."""

    def to_json(self) -> str:
        """Return the text that :meth:`require` reads."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps({**content, "crc32": _checksum(content)})

    def require(self, text: str | bytes, where: Path) -> None:
        """Check that a text of :meth:`to_json` describes this journal.

        Raises:
            UsageError: it describes another journal; the message names each difference.
            KeyError, TypeError: the text is not an identity, or is damaged.
        """
        try:
            found = parse(text, dict[str, Any])
        except ValueError as error:
            raise TypeError(f"not JSON: {error}") from None
        format, crc = found["format"], found.pop("crc32")
        if crc != _checksum(found):
            raise TypeError("its content does not match its checksum")
        if format != FORMAT:
            raise UsageError(
                f"{where}: a journal of format {format}; this version of torch-edl reads "
                f"format {FORMAT}, so finish the job with the version that began it"
            )
        differ = [
            f"{what} {found[name]!r} (this server: {getattr(self, name)!r})"
            for name, what in _NAMES.items()
            if found[name] != getattr(self, name)
        ]
        if differ:
            raise UsageError(
                f"{where}: a journal of {', '.join(differ)}; choose another --journal-dir, or "
                "remove the folder if nothing in it is needed"
            )


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
        _require_journal(root, identity)
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


def _require_journal(root: Path, identity: JournalIdentity) -> None:
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
