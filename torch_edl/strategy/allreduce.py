"""A ring of equal replicas that survives its members.

All members take the same steps: each adds its part of a global batch, gradients are summed, each
optimizer does the same. How far the job is in its data is part of what the members share, so a
step that fails is taken again from the same place by those that are left, and no record is lost
or counted twice. Members differ by one step at most (one may have finished a collective that
another lost); the most advanced one then gives its state to the others, and to those who join.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torch_edl import checkpoint
from torch_edl.errors import EdlError
from torch_edl.strategy import replica as replicas
from torch_edl.strategy.gradients import Gradients, Phase
from torch_edl.strategy.group import Group, RingBrokenError
from torch_edl.strategy.meeting import DismissedError, Meeting, Seat
from torch_edl.strategy.replica import Replica, State

log = logging.getLogger(__name__)

_CHUNK_BYTES = 32 << 20
_MAX_HEADER_BYTES = 1 << 28
# Numbers that travel with the gradients: members that want another ring, members that have heard
# of the master lately, and checksums of the place in the data and of the parameters, 8 bits each:
# sums of so many members as there may be are exact in float32.
_STALE, _AUTHORIZED, _PLACE, _DIGEST, _LANES = 0, 1, 2, 6, 10
# Steps of optimizers within one update that are told apart.
_MAX_STEPS = 16
_UNAUTHORIZED = "no member has heard of the master lately"


class DivergedError(EdlError):
    """The parameters of two members differ: something in the script is not the same in all."""


class AllReduce:
    """One member.

    Args:
        meeting: where rings are formed; None: this process is alone, for good.
        check_every: compare a checksum of all parameters each so many steps; 0: never.
        on_resize: called after the ring has changed.
        checkpoint: names the checkpoint to begin with where the master names none.
    """

    def __init__(
        self,
        replica: Replica,
        meeting: Meeting | None,
        *,
        check_every: int = 0,
        on_resize: Callable[[], None] = lambda: None,
        checkpoint: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self.replica = replica
        self.gradients = Gradients(replica.model)
        self.rank = 0
        self.world = 1
        self.ring = 0
        self.rings = 0
        """How many it has been in."""
        self._meeting = meeting
        self._check_every = check_every
        self._on_resize = on_resize
        self._checkpoint = checkpoint
        self._steps = 0  # of optimizers, in the update that is open
        self._place = [0.0] * 4
        self._group: Group | None = None
        self._in_ring = False
        self._in_step = False
        self._stepped = False  # an optimizer was called in this update
        self._stale = False
        self._whole = meeting is None  # its model is one that others may take
        self._digest: list[float] = []
        self._digest_step = -1
        self._warned = False
        self._records = 0
        self.catching_up = False
        """The script runs through what the others did before this process came."""
        self.gradients.fill_lanes = self._fill_lanes
        self.gradients.refuse = self._refuse
        for optimizer in replica.optimizers:
            optimizer.register_step_pre_hook(self._before_step)

    # ---- the ring ----

    @property
    def joined(self) -> bool:
        """Whether it is in a ring (or alone)."""
        return self._meeting is None or self._in_ring

    def join(self) -> None:
        """Comes into the next ring, with the state that all its members have then.

        Raises:
            DismissedError: the job goes on without this process.
        """
        if self._meeting is None:
            return
        self._close()
        self._stale = False  # it was said of the ring before
        while True:
            step = self._progress() if self._whole else -1
            seat = self._meeting.next(self.ring, step)
            self.ring = seat.ring
            why = self._enter(seat)
            if not why:
                break
            log.warning("ring %d: %s", seat.ring, why)
            self._close()
        self.rings += 1
        log.info(
            "ring %d: rank %d of %d, step %d", self.ring, self.rank, self.world,
            self.replica.position.step,
        )  # fmt: skip
        self._on_resize()

    def _progress(self) -> int:
        """Grows with all that is done to the model: the member with the most gives its state.

        A script may step one optimizer, and lose the ring before it steps the next one.
        """
        return self.replica.position.progress * _MAX_STEPS + min(self._steps, _MAX_STEPS - 1)

    def _enter(self, seat: Seat) -> str:
        """Makes the ring of a seat; why it could not be, or an empty text."""
        assert self._meeting is not None
        size = len(seat.workers)
        try:
            if size > 1:
                # From here on the master's word that a member is gone ends what is under way.
                self._group = Group(
                    seat.store, seat.ring, seat.rank, size,
                    host=self._meeting.host, device=self.replica.device,
                    meet_s=self._meeting.meet_s,
                )  # fmt: skip
            # The others wait as long as it takes to read.
            if seat.fresh and seat.rank == seat.source:
                self._begin_life(seat)
            if self._group is not None and seat.heal:
                self._heal(self._group, seat)
        except RingBrokenError as error:
            return str(error)
        self._whole = self._in_ring = True
        self.rank, self.world = seat.rank, size
        self.gradients.use(self._group, _LANES)
        self._meeting.joined(seat.ring, self.replica.position.records)
        return ""

    def _begin_life(self, seat: Seat) -> None:
        """Nobody has a model that was trained: begins with a checkpoint, or with what was built."""
        own = self._checkpoint()
        if seat.restored_from:
            self.restore(Path(seat.restored_from), values_only=seat.values_only)
        elif own is not None:
            log.info("going on from %s", own)
            self.restore(own, values_only=False)

    def interrupt(self, ring: int) -> None:
        """Ends the collective that is under way if it is of that ring or an earlier one. From any
        thread."""
        group = self._group
        if group is not None and group.ring <= ring:
            group.interrupt()

    def _close(self) -> None:
        group, self._group = self._group, None
        self._in_ring = False
        self.gradients.use(None, _LANES)
        if group is not None:
            group.close()

    def leave(self, *, finished: bool) -> None:
        """Goes out of the ring, so that the others need not find out by themselves."""
        if self._meeting is not None and self.ring:
            self._close()
            self._meeting.leave(self.ring, finished=finished)

    def _heal(self, group: Group, seat: Seat) -> None:
        """Members that lack the state of the source take it over; the others need not wait."""
        progress = str(self._progress() if self._whole else -1).encode()
        told = group.gather(progress)
        lacking = [
            rank
            for rank, one in enumerate(told)
            if rank != seat.source and (seat.fresh or one != told[seat.source])
        ]
        if seat.rank == seat.source:
            for rank in lacking:
                self._give(group, rank)
        elif seat.rank in lacking:
            self._take_over(group, seat.source)

    def _give(self, group: Group, to: int) -> None:
        state = self.replica.state()
        head = json.dumps(state.header).encode()
        group.send(torch.tensor([len(head)]), to)
        group.send(torch.frombuffer(bytearray(head), dtype=torch.uint8), to)
        tensors = [state.tensors[name].cpu() for name, _, _ in state.header["tensors"]]
        for buffer, _ in replicas.chunks(tensors, _CHUNK_BYTES):
            group.send(buffer, to)

    def _take_over(self, group: Group, source: int) -> None:
        """Nothing changes here before all of it has come."""
        length = torch.zeros(1, dtype=torch.int64)
        group.receive(length, source)
        if not 0 < int(length) <= _MAX_HEADER_BYTES:
            raise RingBrokenError(f"a state with a header of {int(length)} bytes")
        text = torch.empty(int(length), dtype=torch.uint8)
        group.receive(text, source)
        header = json.loads(text.numpy().tobytes())
        taken = {
            name: torch.empty(shape, dtype=getattr(torch, dtype))
            for name, dtype, shape in header["tensors"]
        }
        for buffer, part in replicas.chunks(list(taken.values()), _CHUNK_BYTES):
            group.receive(buffer, source)
            replicas.spread(buffer, part)
        self.replica.load(State(header, taken))

    # ---- an update ----

    def begin(self, share: float, *, last: bool, lead: bool) -> None:
        """The next backward is of a minibatch.

        Args:
            share: its records over those of the whole update, of all members.
            last: no other minibatch of this member follows in this update.
            lead: this member has the first records of the update.
        """
        gradients = self.gradients
        if not self._in_step:
            gradients.restart()
            if self._meeting is not None:
                gradients.keep_norms()
            self._in_step = True
            self._stepped = False
            self._steps = 0
        gradients.share = share
        gradients.lead = lead
        if self._group is None and self._meeting is not None and not self._meeting.authorized:
            gradients.broken = _UNAUTHORIZED
        alone = self._group is None and share == 1.0
        if alone:
            gradients.phase = Phase.IDLE
            gradients.reduced = not gradients.broken
        else:
            gradients.phase = Phase.REDUCE if last else Phase.GATHER

    def rehearse(self) -> None:
        """The next backward counts for nothing: a process that is about to join warms up."""
        self.gradients.restart()
        self.gradients.keep_norms()
        self.gradients.phase = Phase.IDLE
        self._in_step = True

    @property
    def live(self) -> bool:
        """Whether what moves the model (optimizer, scheduler, scaler) may act now."""
        if self._in_step:
            return self.gradients.reduced
        return not self.catching_up

    def _before_step(self, *_: Any) -> None:
        self._stepped = True
        if not self.live:
            # An optimizer leaves a parameter without a gradient alone.
            self.gradients.drop()
        elif self._in_step and self._meeting is not None:
            self._steps += 1
            self.gradients.check_known(self.replica.optimizers)

    def expect(self, records: int) -> None:
        """The update that begins takes so many records, of all members together."""
        self._records = records
        if self._meeting is None:
            return
        position = self.replica.position
        place = json.dumps([position.pass_index, position.records, records, position.data])
        self._place = _parts(zlib.crc32(place.encode()))

    def settle(self) -> bool:
        """Counts an update that the script made before it left its loop; whether it had."""
        made = self._in_step and self._stepped and self.gradients.reduced
        if made:
            self.finish()
        self._in_step = False
        self.gradients.phase = Phase.IDLE
        return made

    def finish(self) -> bool:
        """The update is over; True if it is in the model of all members.

        False: the ring broke and this process is in another one, where the records come again.
        """
        gradients = self.gradients
        if not gradients.reduced and not gradients.broken and gradients.phase is Phase.REDUCE:
            self._make_up()
        self._in_step = False
        gradients.phase = Phase.IDLE
        if gradients.broken:
            log.warning("ring %d broke: %s", self.ring, gradients.broken)
            gradients.restart()
            gradients.undo_norms()
            ring, step = self.ring, self.replica.position.step
            self.join()
            # Another member of that ring had the sum, with this one's part, and gave its state.
            return self.ring == ring + 1 and self.replica.position.step == step + 1
        self.replica.position.step += 1
        self.replica.position.records += self._records
        self._steps = 0
        return True

    def tend(self) -> None:
        """Between two updates: forms another ring if somebody waits for it."""
        if self._meeting is None:
            return
        if self._stale or (self._group is None and self._meeting.is_stale(self.ring)):
            self._stale = False
            if self._meeting.leaving:
                self.leave(finished=False)
                raise DismissedError("asked to leave")
            self.join()

    def rest(self) -> None:
        """There is nothing to train: forms another ring if a member is gone, or somebody waits."""
        if self._meeting is not None and self._meeting.is_stale(self.ring):
            if self._meeting.leaving:
                raise DismissedError("asked to leave")
            self.join()

    def complete(self) -> None:
        """Takes part in the update if no backward did."""
        gradients = self.gradients
        if gradients.phase is Phase.REDUCE and not gradients.reduced and not gradients.broken:
            gradients.reduce_nothing()

    def abandon(self) -> None:
        """The minibatch that was begun is none: an exercise is over."""
        self._in_step = False
        self.gradients.phase = Phase.IDLE
        self.gradients.restart()
        self.gradients.undo_norms()
        self.gradients.drop()

    def _make_up(self) -> None:
        """The script went on without a backward; the others wait for this member's part."""
        if not self._warned:
            self._warned = True
            log.warning("a batch was left without backward(): its records count, with no gradient")
        self.complete()
        if self.gradients.reduced:
            for optimizer in self.replica.optimizers:
                optimizer.step()

    # ---- what travels with the gradients ----

    def _fill_lanes(self, lanes: torch.Tensor) -> None:
        assert self._meeting is not None
        numbers = [0.0] * _LANES
        numbers[_STALE] = float(self._meeting.is_stale(self.ring))
        numbers[_AUTHORIZED] = float(self._meeting.authorized)
        numbers[_PLACE:_DIGEST] = self._place
        step = self.replica.position.step
        if self._check_every and step % self._check_every == 0:
            digest = self.replica.digest()
            self._digest_step = step
            self._digest = _parts(digest)
            numbers[_DIGEST:] = self._digest
        lanes.copy_(torch.tensor(numbers))

    def _refuse(self, sums: list[float]) -> str:
        self._stale = sums[_STALE] > 0
        if not sums[_AUTHORIZED]:
            return _UNAUTHORIZED
        if sums[_PLACE:_DIGEST] != [self.world * part for part in self._place]:
            position = self.replica.position
            raise DivergedError(
                f"the processes are not at the same place: this one is at record "
                f"{position.records:,} of pass {position.pass_index}, over {position.data}; every "
                "process must go through the same loaders and evaluations, over the same data, "
                "and leave a loop at the same job.step"
            )
        if self._digest_step == self.replica.position.step:
            self._digest_step = -1
            if sums[_DIGEST:] != [self.world * part for part in self._digest]:
                raise DivergedError(
                    f"step {self.replica.position.step}: the parameters of the members differ; "
                    "something in the script depends on the process (the rank, a random number, "
                    "a condition on a local value), see the docs on what must be alike"
                )
        return ""

    # ---- alike for all members ----

    def agree(
        self, make: Callable[[int, int], bytes], wanted: Callable[[], bool] = lambda: True
    ) -> list[bytes] | None:
        """What ``make(rank, world)`` gives in every member, in the order of ranks; it is called
        again in the next ring if one breaks.

        Args:
            wanted: whether it is still to be done; asked in each ring, since the state that was
                taken over in one may be of a member that is through with it.

        Returns:
            None if it was not wanted any more.
        """
        while wanted():
            if self._group is None:
                return [make(self.rank, self.world)]
            mine = make(self.rank, self.world)
            try:
                return self._group.gather(mine)
            except RingBrokenError as error:
                log.warning("ring %d broke: %s", self.ring, error)
            self.join()
        return None

    # ---- checkpoints ----

    def restore(self, folder: Path, *, values_only: bool) -> None:
        """Loads a checkpoint.

        Raises:
            CheckpointError: it is damaged, or of another model.
        """
        if values_only:
            self.replica.load_model(replicas.read_model(folder))
            return
        checkpoint.read(folder)
        self.replica.load(replicas.read(folder))


def _parts(checksum: int) -> list[float]:
    return [float(checksum >> shift & 255) for shift in (0, 8, 16, 24)]
