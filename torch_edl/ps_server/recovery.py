"""Brings a shard to the state that its journal holds."""

from __future__ import annotations

import logging
import time

from torch_edl.ps_server.journal import Journal
from torch_edl.ps_server.shard import Shard

log = logging.getLogger(__name__)


def recover(shard: Shard, journal: Journal) -> None:
    """Makes the changes of the journal again, in a shard that nobody uses yet.

    Raises:
        JournalDamagedError: a record is damaged or missing; the message names it.
        EdlError: a change does not fit the state.
    """
    began = time.monotonic()
    for record in journal.records():
        shard.replay(record)
    if journal.last:
        log.info(
            "journal %s: %d records replayed in %.1f s; version %d",
            journal.folder,
            journal.last - journal.base.sequence,
            time.monotonic() - began,
            shard.version,
        )
