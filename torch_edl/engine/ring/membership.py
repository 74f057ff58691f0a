"""Membership of this process in a ring: join with the state of the most advanced member, and
leave. A state is sent point to point, so that members that are up to date need not wait. The
members compare their states by control numbers, which are summed together with the gradients and
need no collective of their own."""

from __future__ import annotations

import itertools
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from torch_edl.data.passes import Span, without
from torch_edl.data.resuming import SAME_SAMPLES, records_of
from torch_edl.engine.replica import ModelReplica
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.engine.ring.replicated import Bytes, Replicated, RingBrokenError, RingGroup
from torch_edl.errors import DismissedError, EdlError
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

NO_MODEL = -1
"""Progress of a member whose model must not be copied."""

# Larger tensors are sent without a copy.
_CHUNK_BYTES = 4 << 20
_MAX_HEADER_BYTES = 1 << 28
# Optimizer steps within one update that are counted separately.
_MAX_STEPS = 16

UNAUTHORIZED = "no member has heard of the master lately"

# Slots for digests of parts of the first records; a hash of its name selects the slot of a part.
_PARTS = 8
# 32-bit checksums are sent as four bytes, so that sums over members are exact in float32.
_SHIFTS = (0, 8, 16, 24)


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
    if group.rank == source and receivers:
        _send(group, replica, receivers)
    elif group.rank in receivers:
        _receive(group, replica, source)


def _send(group: RingGroup, replica: ModelReplica, receivers: Sequence[int]) -> None:
    """Send the state, which is copied once. The receivers get it in turns, so none of them waits
    until another one has all of it."""
    header, tensors = replica.outgoing()
    head = np.frombuffer(bytearray(json.dumps(header).encode()), np.uint8)
    length = np.array([len(head)], np.int64).view(np.uint8)
    parts = (buffer for buffer, _ in chunks(tensors, _CHUNK_BYTES))
    for part in itertools.chain((length, head), parts):
        for rank in receivers:
            group.send(part, rank)


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


def _octets(value: int | None) -> list[float]:
    return [float((value or 0) >> shift & 255) for shift in _SHIFTS]


def spread(buffer: Bytes, group: Sequence[Bytes]) -> None:
    """Copy a buffer of :func:`chunks` back into the tensors of its group."""
    start = 0
    for tensor in group:
        if tensor is not buffer:
            tensor[:] = buffer[start : start + tensor.nbytes]
        start += tensor.nbytes


class RingMembership:
    """The current ring of this process and its rank there.

    Args:
        rendezvous: forms the rings; None if this process always trains alone.
        checkpoint: returns the checkpoint to start with if the master names none.
    """

    def __init__(
        self,
        model: Replicated,
        rendezvous: RingRendezvous | None,
        checkpoint: Callable[[], Path | None],
    ) -> None:
        self.rank = 0
        self.world = 1
        self.ring = 0
        """Number of the newest ring; 0 before the first."""
        self.group: RingGroup | None = None
        """Connections to the other members; None if there are none."""
        self.joined = rendezvous is None
        """True if this process is in a ring, or always trains alone."""
        self.reports_spans = False
        """True if this process reports each span that it trains, because members have died."""
        self.skip: list[Span] = []
        """Spans in the data of a model file that killed members and are left out."""
        self._model = model
        self._replica = model.replica
        self._rendezvous = rendezvous
        self._checkpoint = checkpoint
        self._has_model = rendezvous is None  # True if other members may copy the model

    def join(self, steps: int = 0, *, handing_over: bool = False) -> None:
        """Join the next ring, and receive the state that its members share.

        Args:
            steps: number of optimizer steps made in an unfinished update.
            handing_over: True if this process was asked to leave, and joins only to send its state.

        Raises:
            DismissedError: the job continues without this process.
        """
        assert self._rendezvous is not None
        self.close()
        while True:
            ring = self._rendezvous.next(
                self.ring, self._progress(steps), handing_over=handing_over
            )
            if self._enter(ring, steps):
                break
        log.info(
            "ring %d: rank %d of %d, step %d", self.ring, self.rank, self.world,
            self._replica.position.step,
        )  # fmt: skip

    def synchronize(self, *, has_model: bool) -> None:
        """Send the state of a member that has the model to the members that do not.

        Raises:
            RingBrokenError: the transfer failed; the state is sent again in the next ring.
        """
        assert self.group is not None
        self._has_model = has_model
        synchronize(self.group, self._replica, self._progress(0))
        self._has_model = True

    def skipped(self, span: Span) -> int:
        """Return the number of records at ``span`` that are left out because they kill members."""
        kept = without(span, self.skip)
        return span[1] - span[0] - sum(last - first for first, last in kept)

    @contextmanager
    def reporting(self, span: Span, name: Callable[[], str]) -> Iterator[None]:
        """Return a context in which this process reads, feeds or computes the records at ``span``.
        If members have died before, this process reports the span to the master, so that its own
        death counts against the records. An exception does not end the reported span, since the
        process or the ring ends then.

        Args:
            name: returns the name of the records, for messages.
        """
        if not self.reports_spans:
            yield
            return
        self._report_span(pb.TaskStep(first=span[0], last=span[1], name=name()))
        yield
        self._report_span(pb.TaskStep())

    def _report_span(self, span: pb.TaskStep) -> None:
        if self.reports_spans and self._rendezvous is not None:
            number = self._replica.position.pass_index
            self.reports_spans = self._rendezvous.report_span(self.ring, number, span)

    def close(self) -> None:
        """Close the connections of the ring, so that no other member waits for this process."""
        group, self.group = self.group, None
        self.joined = self._rendezvous is None
        if group is not None:
            group.close()

    def leave(self, *, finished: bool) -> None:
        """Leave the ring and notify the master, so that the other members notice at once.

        Args:
            finished: True if the script has ended. Rank 0 writes the output of a script; until the
                script of rank 0 has ended, the other members keep the model for a replacement.

        Raises:
            DismissedError: this process was asked to leave while it waited for rank 0.
        """
        if self._rendezvous is None or not self.ring:
            return
        self.close()
        try:
            if finished and self.rank:
                self._stand_by(self._rendezvous)
        except DismissedError:
            finished = False
            raise
        finally:
            self._rendezvous.leave(self.ring, finished=finished)

    def interrupt(self, ring: int) -> None:
        """End the current collective of that ring or an earlier one, from any thread."""
        group = self.group
        if group is not None and group.ring <= ring:
            group.interrupt()

    def _progress(self, steps: int) -> int:
        """Return a number that grows with each change of the model; the largest one is the source.

        Optimizer steps count, because a script may lose the ring between the steps of two
        optimizers.
        """
        if not self._has_model:
            return NO_MODEL
        return self._replica.position.progress * _MAX_STEPS + min(steps, _MAX_STEPS - 1)

    def _enter(self, ring: pb.Ring, steps: int = 0) -> bool:
        """Form a ring with the other members; return False if that failed."""
        assert self._rendezvous is not None
        rank, size = list(ring.workers).index(self._rendezvous.worker_id), len(ring.workers)
        self.ring = ring.number
        try:
            if size > 1:
                # From here on, a message of the master about a lost member interrupts the group.
                self.group = self._model.connect(
                    ring.store, ring.number, rank, size,
                    host=self._rendezvous.host, meet_s=self._rendezvous.meet_s,
                )  # fmt: skip
            # The other members wait for the time that reading takes.
            if ring.fresh and rank == ring.source:
                self._restore_first(ring)
            if self.group is not None and ring.heal:
                synchronize(
                    self.group, self._replica, self._progress(steps),
                    source=ring.source, everyone=ring.fresh,
                )  # fmt: skip
        except RingBrokenError as error:
            log.warning("ring %d: %s", ring.number, error)
            self.close()
            return False
        self._has_model = self.joined = True
        self.rank, self.world = rank, size
        self.reports_spans = ring.report_spans
        self.skip = [(each.first, each.last) for each in ring.skip]
        self._rendezvous.joined(ring.number, self._replica.position.records)
        return True

    def _restore_first(self, ring: pb.Ring) -> None:
        """Restore a checkpoint, if there is one: no member of the ring has a trained model."""
        own, values_only = self._checkpoint(), False
        if ring.restored_from:
            own, values_only = Path(ring.restored_from), ring.values_only
        elif own is not None:
            log.info("going on from %s", own)
        if own is not None:
            manifest = self._replica.restore(own, values_only=values_only)
            if manifest is not None and manifest.strategy == "local":  # its position is in tasks
                self._replica.position.records = records_of(own, manifest)

    def _stand_by(self, rendezvous: RingRendezvous) -> None:
        while (ring := rendezvous.stand_by(self.ring, self._progress(0))) is not None:
            log.info("ring %d: giving the model to new members", ring.number)
            self._enter(ring)
            self.close()


class DivergedError(EdlError):
    """The members do not do the same, or their parameters differ, because the script is not
    deterministic."""


class ControlFlags:
    """Sends this member's state to the other members, and checks their states.

    Args:
        check_every: number of updates between comparisons of a parameter checksum; 0 for never.
    """

    COUNT = 4 + 3 * len(_SHIFTS) + _PARTS * (1 + len(_SHIFTS))
    """Number of control numbers."""

    def __init__(
        self,
        replica: ModelReplica,
        rendezvous: RingRendezvous | None,
        membership: RingMembership,
        check_every: int,
    ) -> None:
        self.skip = False
        """True if the script of this member skipped its batch of the current update."""
        self.stale = self.skipped = self.leaving = 0
        """Numbers of members, as of the newest update: members that request another ring, members
        that skipped their batch, and members that were asked to leave."""
        self._replica = replica
        self._rendezvous = rendezvous
        self._membership = membership
        self._check_every = check_every
        self._begun: float | None = None
        self._place = self._samples = 0
        self._parts: list[float] = []
        self.compare({})
        self._sent: list[float] = []

    def clear(self) -> None:
        """Reset the counts before another ring is formed."""
        self.stale = self.skipped = self.leaving = 0

    def compare(self, first_records: Mapping[str, str]) -> None:
        """Compare these digests of the parts of the first records in the updates that follow; see
        :mod:`torch_edl.pytorch.first_records`."""
        places: list[int | None] = [None] * _PARTS
        for name in sorted(first_records):
            place = zlib.crc32(name.encode()) % _PARTS
            if places[place] is None:
                places[place] = zlib.crc32(first_records[name].encode())
        self._parts = [n for place in places for n in (float(place is not None), *_octets(place))]

    def begin_update(self, records: int) -> None:
        """Begin an update of ``records`` records at the current position."""
        self.skip = False
        self._begun = time.monotonic()
        if self._rendezvous is not None:
            at = self._replica.position
            place = json.dumps([at.pass_index, at.records, records, at.data, at.epochs])
            self._place = zlib.crc32(place.encode())
            samples = json.dumps([at.data.get("records"), at.data.get("samples")])
            self._samples = zlib.crc32(samples.encode())

    def send(self) -> list[float]:
        """Return the numbers of this member, to be summed over all members."""
        rendezvous, step = self._rendezvous, self._replica.position.step
        assert rendezvous is not None
        if self._begun is not None:
            rendezvous.worked(time.monotonic() - self._begun)
            self._begun = None
        stale = rendezvous.is_stale(self._membership.ring)
        due = self._check_every and step % self._check_every == 0
        digest = self._replica.digest() if due else 0
        values = (self._samples, self._place, digest)
        self._sent = [
            *map(float, (stale, rendezvous.authorized, self.skip, rendezvous.leaving)),
            *(octet for value in values for octet in _octets(value)),
            *self._parts,
        ]
        return self._sent

    def receive(self, sums: Sequence[float]) -> str:
        """Evaluate the sums over all members; return the reason to reject the update, or "".

        Raises:
            DivergedError: the members are not at the same position or differ in their parameters.
        """
        self.stale, authorized, self.skipped, self.leaving = map(int, sums[:4])
        position, world = self._replica.position, self._membership.world
        same = [total == world * own for total, own in zip(sums, self._sent, strict=True)]
        place, digest, parts = (4 + n * len(_SHIFTS) for n in (1, 2, 3))
        if not authorized:
            return UNAUTHORIZED
        if not all(same[4:place]):
            raise DivergedError(
                f"the dataset of this process, of {position.data.get('records', 0):,} records, has "
                f"another length or stores other samples than that of another process; "
                f"{SAME_SAMPLES}"
            )
        step = 1 + len(_SHIFTS)
        places = range(parts, self.COUNT, step)
        known = [same[at + 1 : at + step] for at in places if int(sums[at]) == world]
        if known and not any(map(all, known)):
            raise DivergedError(
                "the first records of the dataset of this process are not those of another "
                f"process; {SAME_SAMPLES}"
            )
        if not all(same[place:digest]):
            raise DivergedError(
                f"the processes are not at the same place: this one is at record "
                f"{position.records:,} of pass {position.pass_index}, over {position.data}; every "
                "process must go through the same loaders and evaluations, over the same data, "
                "and leave a loop at the same job.step"
            )
        if not all(same[digest:parts]):
            raise DivergedError(
                f"step {position.step}: the parameters of the members differ; something in the "
                "script depends on the process (the rank, a random number, a condition on a local "
                "value), see the docs on what must be alike"
            )
        return ""
