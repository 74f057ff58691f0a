"""What fixes the meaning of a position in the data: compared when a job goes on. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch_edl.data.task_space import Shard

_WORDS = {
    "records": "{:,} records",
    "batch_size": "batch_size={}",
    "records_per_task": "{:,} records a task",
    "shuffle": "shuffle={!r}",
    "seed": "seed={}",
    "epochs": "epochs={}",
}


def digest(shards: Sequence[Shard]) -> str:
    """Of names, record counts and sizes of data files, in their order; of times not, since other
    machines may have copies."""
    text = json.dumps([[shard.name, shard.records, shard.size] for shard in shards])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def in_words(name: str, value: Any) -> str:
    """One part of an identity, as an argument of ``job.loader`` where it is one."""
    if name == "files":
        named = f"data files {value} (digest of names, record counts and sizes)"
        return named if value else "no data files"
    return _WORDS[name].format(bool(value) if name == "shuffle" else value)


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first part in which two identities differ, in the words of both; None: in none.

    What only one of them has is not compared: an earlier version did not know it.
    """
    for name in [*_WORDS, "files"]:
        if name in then and name in now and then[name] != now[name]:
            return in_words(name, then[name]), in_words(name, now[name])
    return None
