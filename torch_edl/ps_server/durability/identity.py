"""The identity of a journal, stored in its files to detect a mix-up. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isal.isal_zlib import crc32

from torch_edl.errors import UsageError

FORMAT = 3
_RUN_DIGITS = 16
_NAMES = {
    "job": "job",
    "shard": "shard",
    "shards": "number of shards",
    "model": "incarnation of the model",
    "run": "run",
}


def _checksum(content: Mapping[str, Any]) -> int:
    return crc32(json.dumps(content).encode())


def run_of(token: str) -> str:
    """Return a name of the run that does not reveal the token of its job."""
    return hashlib.sha256(token.encode()).hexdigest()[:_RUN_DIGITS]


@dataclass(frozen=True, kw_only=True)
class JournalIdentity:
    """The identity of one journal: of one shard, for one incarnation of the model."""

    job: str
    shard: int
    shards: int
    model: int
    """Incarnation of the model, which increases when the job returns to a checkpoint."""
    run: str = ""
    """Name of the run, unique among jobs of the same name; empty if no other process reads the
    journal."""

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
            found = json.loads(text)
        except ValueError as error:
            raise TypeError(f"not JSON: {error}") from None
        format = found["format"]
        if format != 1 or "crc32" in found:  # format 1 has no checksum
            crc = found.pop("crc32")
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
