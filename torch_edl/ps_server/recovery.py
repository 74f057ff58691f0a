"""Brings a shard to the state that its log holds."""

from __future__ import annotations

import logging
import time

from torch_edl.errors import JournalDamagedError
from torch_edl.ps_server import snapshots
from torch_edl.ps_server.shard import Shard
from torch_edl.ps_server.snapshots import Log

_log = logging.getLogger(__name__)


def recover(shard: Shard, log: Log) -> None:
    """Loads the base of the log, and makes the changes since then again, in a shard that nobody
    uses yet.

    Raises:
        JournalDamagedError: the base or a record is damaged or missing; the message names it.
        EdlError: a change does not fit the state.
    """
    began, base = time.monotonic(), log.base
    newest = snapshots.load(shard, base) if base.path else 0
    for record in log.records():
        shard.replay(record)
    if shard.sequence < newest:
        raise JournalDamagedError(
            f"{base.path}: records {shard.sequence + 1} to {newest}, which came during the "
            "snapshot, are missing"
        )
    if shard.dense is not None:
        shard.dense.settle()
    if shard.sequence:
        _log.info(
            "state after %d records restored in %.1f s, %d of them one by one; version %d",
            shard.sequence,
            time.monotonic() - began,
            shard.sequence - base.sequence,
            shard.version,
        )
