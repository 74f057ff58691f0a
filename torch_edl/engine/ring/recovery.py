"""How a member of a ring gets the state of the member that is furthest: point to point, so that
the others need not wait."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from torch_edl.engine.ring.group import Bytes, Group, RingBrokenError
from torch_edl.engine.ring.replicated import SharedReplica

NO_MODEL = -1
"""The progress of a member whose model nobody may take."""

# Larger ones travel as they lie in memory.
_CHUNK_BYTES = 4 << 20
_MAX_HEADER_BYTES = 1 << 28


def synchronize(
    group: Group,
    replica: SharedReplica,
    progress: int,
    *,
    source: int | None = None,
    everyone: bool = False,
) -> None:
    """Makes the state of all members equal; a collective.

    Args:
        progress: of this member; a member whose progress is the source's is sent nothing.
        source: the rank that sends; None: the first of those that are furthest.
        everyone: the other members receive the state whatever their progress is.

    Raises:
        RingBrokenError: it failed; the state of this member is unchanged.
    """
    told = [int(one) for one in group.gather(str(progress).encode())]
    if source is None:
        source = told.index(max(told))
    receivers = [
        rank
        for rank, one in enumerate(told)
        if rank != source and (everyone or one != told[source])
    ]
    if group.rank == source:
        for rank in receivers:
            _send(group, replica, rank)
    elif group.rank in receivers:
        _receive(group, replica, source)


def _send(group: Group, replica: SharedReplica, to: int) -> None:
    header, tensors = replica.outgoing()
    head = np.frombuffer(bytearray(json.dumps(header).encode()), np.uint8)
    group.send(np.array([len(head)], np.int64).view(np.uint8), to)
    group.send(head, to)
    for buffer, _ in chunks(tensors, _CHUNK_BYTES):
        group.send(buffer, to)


def _receive(group: Group, replica: SharedReplica, source: int) -> None:
    """The replica changes only when all of the state has come."""
    length = np.zeros(1, np.int64)
    group.receive(length.view(np.uint8), source)
    if not 0 < int(length[0]) <= _MAX_HEADER_BYTES:
        raise RingBrokenError(f"a state with a header of {int(length[0])} bytes")
    text = np.empty(int(length[0]), np.uint8)
    group.receive(text, source)
    places, take = replica.incoming(json.loads(text.tobytes()))
    for buffer, part in chunks(places, _CHUNK_BYTES):
        group.receive(buffer, source)
        spread(buffer, part)
    take()


def chunks(tensors: Sequence[Bytes], limit_bytes: int) -> Iterator[tuple[Bytes, list[Bytes]]]:
    """Groups of tensors with one buffer for each, so that small ones travel together.

    The buffer holds the tensors of its group one after the other when it is given out. That of a
    single one is its own memory: large ones are not copied.

    Args:
        limit_bytes: of a group of several.
    """
    group: list[Bytes] = []
    size = 0
    for tensor in [*tensors, None]:
        if group and (tensor is None or size + tensor.nbytes > limit_bytes):
            yield group[0] if len(group) == 1 else np.concatenate(group), group
            group, size = [], 0
        if tensor is not None and tensor.nbytes:
            group.append(tensor)
            size += tensor.nbytes


def spread(buffer: Bytes, group: Sequence[Bytes]) -> None:
    """Copies a buffer of :func:`chunks` back into the tensors of its group."""
    start = 0
    for tensor in group:
        if tensor is not buffer:
            tensor[:] = buffer[start : start + tensor.nbytes]
        start += tensor.nbytes
