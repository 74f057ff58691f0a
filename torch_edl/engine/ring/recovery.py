"""How a member of a ring gets the state of the member that is furthest: point to point, so that
the others need not wait."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import torch

from torch_edl.engine.replica import Replica, State, as_bytes
from torch_edl.engine.ring.process_group import ProcessGroup, RingBrokenError

NO_MODEL = -1
"""The progress of a member whose model nobody may take."""

# Larger ones travel as they lie in memory.
_CHUNK_BYTES = 4 << 20
_MAX_HEADER_BYTES = 1 << 28


def synchronize(
    group: ProcessGroup,
    replica: Replica,
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


def _send(group: ProcessGroup, replica: Replica, to: int) -> None:
    state = replica.state()
    head = json.dumps(state.header).encode()
    group.send(torch.tensor([len(head)]), to)
    group.send(torch.frombuffer(bytearray(head), dtype=torch.uint8), to)
    tensors = [state.tensors[name].cpu() for name, _, _ in state.header["tensors"]]
    for buffer, _ in chunks(tensors, _CHUNK_BYTES):
        group.send(buffer, to)


def _receive(group: ProcessGroup, replica: Replica, source: int) -> None:
    """The replica changes only when all of the state has come."""
    length = torch.zeros(1, dtype=torch.int64)
    group.receive(length, source)
    if not 0 < int(length) <= _MAX_HEADER_BYTES:
        raise RingBrokenError(f"a state with a header of {int(length)} bytes")
    text = torch.empty(int(length), dtype=torch.uint8)
    group.receive(text, source)
    header = json.loads(text.numpy().tobytes())
    received = {
        name: torch.empty(shape, dtype=getattr(torch, dtype))
        for name, dtype, shape in header["tensors"]
    }
    for buffer, part in chunks(list(received.values()), _CHUNK_BYTES):
        group.receive(buffer, source)
        spread(buffer, part)
    replica.load(State(header, received))


def chunks(
    tensors: Sequence[torch.Tensor], limit_bytes: int
) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Groups of tensors with one buffer of bytes for each, so that small ones travel together.

    The buffer holds the tensors of its group one after the other when it is given out. That of a
    single one is its own memory, if it is contiguous: large ones are not copied.

    Args:
        limit_bytes: of a group of several.
    """
    group: list[torch.Tensor] = []
    size = 0
    for tensor in [*tensors, None]:
        if group and (tensor is None or size + tensor.nbytes > limit_bytes):
            parts = [as_bytes(t) for t in group]
            yield parts[0] if len(parts) == 1 else torch.cat(parts), group
            group, size = [], 0
        if tensor is not None and tensor.numel():
            group.append(tensor)
            size += tensor.nbytes


def spread(buffer: torch.Tensor, group: Sequence[torch.Tensor]) -> None:
    """Copies a buffer of :func:`chunks` back into the (contiguous) tensors of its group."""
    start = 0
    for tensor in group:
        own = as_bytes(tensor)
        if own.data_ptr() != buffer.data_ptr() + start:
            own.copy_(buffer[start : start + tensor.nbytes])
        start += tensor.nbytes
