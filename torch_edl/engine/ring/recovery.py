"""Transfer of the state from the most advanced member of a ring, point to point, so that members
that are up to date need not wait."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from torch_edl.engine.replica import ModelReplica
from torch_edl.engine.ring.group import Bytes, RingBrokenError, RingGroup

NO_MODEL = -1
"""Progress of a member whose model must not be copied."""

# Larger tensors are sent without a copy.
_CHUNK_BYTES = 4 << 20
_MAX_HEADER_BYTES = 1 << 28


def synchronize(
    group: RingGroup,
    replica: ModelReplica,
    progress: int,
    *,
    source: int | None = None,
    everyone: bool = False,
) -> None:
    """Make the states of all members equal. A collective operation.

    Args:
        progress: progress of this member; members with the progress of the source receive nothing.
        source: rank of the sender; None for the first of the most advanced members.
        everyone: send the state to all members, whatever their progress.

    Raises:
        RingBrokenError: the transfer failed; the state of this member is unchanged.
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


def _send(group: RingGroup, replica: ModelReplica, to: int) -> None:
    header, tensors = replica.outgoing()
    head = np.frombuffer(bytearray(json.dumps(header).encode()), np.uint8)
    group.send(np.array([len(head)], np.int64).view(np.uint8), to)
    group.send(head, to)
    for buffer, _ in chunks(tensors, _CHUNK_BYTES):
        group.send(buffer, to)


def _receive(group: RingGroup, replica: ModelReplica, source: int) -> None:
    """Receive a state. The replica changes only after the complete state has arrived."""
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
    """Group tensors with one buffer for each group, so that small tensors are sent together.

    A buffer holds the concatenated tensors of its group. The buffer of a single tensor is the
    tensor's own memory, so large tensors are not copied.

    Args:
        limit_bytes: largest size of a group of several tensors.
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
    """Copy a buffer of :func:`chunks` back into the tensors of its group."""
    start = 0
    for tensor in group:
        if tensor is not buffer:
            tensor[:] = buffer[start : start + tensor.nbytes]
        start += tensor.nbytes
