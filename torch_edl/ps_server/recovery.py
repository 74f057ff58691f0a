"""Restores a shard from its log."""

from __future__ import annotations

import logging
import time

from torch_edl.errors import EdlError, JournalDamagedError, UsageError
from torch_edl.ps_server import snapshots
from torch_edl.ps_server.durability.log import ChangeLog, Damage
from torch_edl.ps_server.durability.records import Kind, LogEntry, Record
from torch_edl.ps_server.shard import ModelShard
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import shard_state_pb2 as state_pb

_log = logging.getLogger(__name__)

# Number of records at the beginning that describe the model.
_SET_UP = 2


def recover(shard: ModelShard, log: ChangeLog) -> None:
    """Load the base of the log, and apply the later changes again, to a shard that is not in use
    yet. Updates that the log cannot read are lost. In the end, ``log.place.damage`` contains only
    damage that no earlier server has counted.

    Raises:
        JournalDamagedError: the base or a record is damaged or missing; the message names it.
        EdlError: a change does not fit the state.
    """
    began, base = time.monotonic(), log.base
    if base.path:
        snapshots.load(shard, base.path)
    noted, damage = shard.lost, log.place.damage
    last = base.sequence
    for record in log.records():
        _lose(shard, last + 1, record.sequence - last - 1, damage)
        _replay(shard, record)
        last = record.sequence
        if record.kind == Kind.REPAIR:
            noted = shard.lost
            damage.forget()
    _lose(shard, last + 1, damage.at_end, damage)
    if shard.lost != noted:
        # A successor may not detect the losses.
        lost = state_pb.LostRecords(records=shard.lost)
        log.append(LogEntry.of(Kind.REPAIR, lost.SerializeToString()))
        log.wait_durable()
    if last:
        _log.info(
            "state after %d records restored in %.1f s, %d of them one by one; version %d",
            last,
            time.monotonic() - began,
            last - base.sequence,
            shard.version,
        )


def _lose(shard: ModelShard, first: int, records: int, damage: Damage) -> None:
    """Count the records from number ``first`` on as lost: they cannot be read."""
    if not records:
        return
    if first <= _SET_UP:
        raise JournalDamagedError(
            f"{damage.text}; the first records describe the model, so nothing can be restored"
        )
    shard.lost += records


def _replay(shard: ModelShard, record: Record) -> None:
    """Apply a change again. The shard has the state before the change, and no other thread uses it.

    Raises:
        EdlError: the change does not fit the state.
    """
    try:
        message, frames = record.parts()
        if record.kind == Kind.GRADIENTS:
            answer = shard.push(pb.PushGradientsRequest.FromString(message), frames)
            if not answer.accepted or answer.duplicate:
                raise UsageError(f"a push that was taken before was not taken: {answer}")
        elif record.kind == Kind.DENSE:
            shard.initialize(pb.PushDenseParametersRequest.FromString(message), frames)
        elif record.kind == Kind.TABLES:
            shard.add_tables(pb.PushEmbeddingTableInfosRequest.FromString(message))
        elif record.kind == Kind.FLUSH:
            shard.flush()
        elif record.kind == Kind.CUT:
            shard.apply_waiting(Watermarks.from_proto(pb.Watermarks.FromString(message)))
        elif record.kind == Kind.EVICTION:
            entry = pb.TableIds.FromString(message)
            shard.table(entry.name).core.remove(codec.ids_from_bytes(entry.ids))
        elif record.kind == Kind.REPAIR:
            shard.lost = state_pb.LostRecords.FromString(message).records
        else:
            raise UsageError(f"a change of an unknown kind, {record.kind}; use a newer torch-edl")
    except (UsageError, ValueError) as error:
        raise EdlError(f"record {record.sequence} cannot be applied again: {error}") from error
