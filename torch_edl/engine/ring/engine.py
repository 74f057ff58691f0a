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

from torch_edl.engine.replica import Replica
from torch_edl.engine.ring import control_flags as lanes
from torch_edl.engine.ring.control_flags import ControlFlags, ControlSums
from torch_edl.engine.ring.process_group import ProcessGroup, RingBrokenError
from torch_edl.engine.ring.recovery import NO_MODEL, heal
from torch_edl.engine.ring.reducer import Phase, Reducer
from torch_edl.engine.ring.rendezvous import Assignment, RingRendezvous
from torch_edl.errors import DismissedError, EdlError

log = logging.getLogger(__name__)

# Steps of optimizers within one update that are told apart.
_MAX_STEPS = 16
_UNAUTHORIZED = "no member has heard of the master lately"


class DivergedError(EdlError):
    """The parameters of two members differ: something in the script is not the same in all."""


class RingEngine:
    """One member.

    Args:
        rendezvous: where rings are formed; None: this process is alone, for good.
        check_every: compare a checksum of all parameters each so many steps; 0: never.
        on_resize: called after the ring has changed.
        checkpoint: names the checkpoint to begin with where the master names none.
    """

    def __init__(
        self,
        replica: Replica,
        rendezvous: RingRendezvous | None,
        *,
        check_every: int = 0,
        on_resize: Callable[[], None] = lambda: None,
        checkpoint: Callable[[], Path | None] = lambda: None,
    ) -> None:
        self.replica = replica
        self.gradients = Reducer(replica.model)
        self.rank = 0
        self.world = 1
        self.ring = 0
        self.rings = 0
        """How many it has been in."""
        self._rendezvous = rendezvous
        self._check_every = check_every
        self._on_resize = on_resize
        self._checkpoint = checkpoint
        self._steps = 0  # of optimizers, in the update that is open
        self._place = 0
        self._group: ProcessGroup | None = None
        self._in_ring = False
        self._in_step = False
        self._stepped = False  # an optimizer was called in this update
        self._made = False  # and moved the model
        self._show: Callable[[], None] | None = None  # puts gradients back after a step
        self._stale = False
        self._skips = False  # the script left the last batch of this update out
        self._skipping = 0  # members that did
        self._leaving = 0  # members that were asked to leave
        self._whole = rendezvous is None  # its model is one that others may take
        self._digest = 0
        self._digest_step = -1
        self._warned = False
        self._records = 0
        self.catching_up = False
        """The script runs through what the others did before this process came."""
        self.gradients.fill_lanes = self._fill_lanes
        self.gradients.refuse = self._refuse
        self._hooks = [
            hook
            for optimizer in replica.optimizers
            for hook in (
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            )
        ]

    # ---- the ring ----

    @property
    def joined(self) -> bool:
        """Whether it is in a ring (or alone)."""
        return self._rendezvous is None or self._in_ring

    def join(self, *, handing_over: bool = False) -> None:
        """Comes into the next ring, with the state that all its members have then.

        Args:
            handing_over: only to give the model to those who wait; it is asked to leave.

        Raises:
            DismissedError: the job goes on without this process.
        """
        if self._rendezvous is None:
            return
        self._close()
        self._stale = False  # it was said of the ring before
        while True:
            assignment = self._rendezvous.next(
                self.ring, self._progress(), handing_over=handing_over
            )
            self.ring = assignment.ring
            why = self._enter(assignment)
            if not why:
                break
            log.warning("ring %d: %s", assignment.ring, why)
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
        if not self._whole:
            return NO_MODEL
        return self.replica.position.progress * _MAX_STEPS + min(self._steps, _MAX_STEPS - 1)

    def _enter(self, assignment: Assignment) -> str:
        """Makes the ring of a assignment; why it could not be, or an empty text."""
        assert self._rendezvous is not None
        size = len(assignment.workers)
        try:
            if size > 1:
                # From here on the master's word that a member is gone ends what is under way.
                self._group = ProcessGroup(
                    assignment.store, assignment.ring, assignment.rank, size,
                    host=self._rendezvous.host, device=self.replica.device,
                    meet_s=self._rendezvous.meet_s,
                )  # fmt: skip
            # The others wait as long as it takes to read.
            if assignment.fresh and assignment.rank == assignment.source:
                self._begin_life(assignment)
            if self._group is not None and assignment.heal:
                heal(
                    self._group, self.replica, self._progress(),
                    source=assignment.source, everyone=assignment.fresh,
                )  # fmt: skip
        except RingBrokenError as error:
            return str(error)
        self._whole = self._in_ring = True
        self.rank, self.world = assignment.rank, size
        self.gradients.use(self._group, lanes.COUNT)
        self._rendezvous.joined(assignment.ring, self.replica.position.records)
        return ""

    def _begin_life(self, assignment: Assignment) -> None:
        """Nobody has a model that was trained: begins with a checkpoint, or with what was built."""
        own = self._checkpoint()
        if assignment.restored_from:
            self.restore(Path(assignment.restored_from), values_only=assignment.values_only)
        elif own is not None:
            log.info("going on from %s", own)
            self.restore(own, values_only=False)

    def release(self) -> None:
        """Lets go of the optimizers: another one takes its place."""
        for hook in self._hooks:
            hook.remove()

    def interrupt(self, ring: int) -> None:
        """Ends the collective that is under way if it is of that ring or an earlier one. From any
        thread."""
        group = self._group
        if group is not None and group.ring <= ring:
            group.interrupt()

    def _close(self) -> None:
        group, self._group = self._group, None
        self._in_ring = False
        self.gradients.use(None, lanes.COUNT)
        if group is not None:
            group.close()

    def leave(self, *, finished: bool) -> None:
        """Goes out of the ring, so that the others need not find out by themselves.

        Args:
            finished: the script is over. What it saves is written by rank 0; until that one is
                over, the others keep the model for who takes its place should it die.

        Raises:
            DismissedError: asked to leave while it waited for rank 0.
        """
        if self._rendezvous is None or not self.ring:
            return
        self._close()
        try:
            if finished and self.rank:
                self._stand_by(self._rendezvous)
        except DismissedError:
            finished = False
            raise
        finally:
            self._rendezvous.leave(self.ring, finished=finished)

    def _stand_by(self, rendezvous: RingRendezvous) -> None:
        while (assignment := rendezvous.stand_by(self.ring, self._progress())) is not None:
            self.ring = assignment.ring
            log.info("ring %d: giving the model to who came", assignment.ring)
            why = self._enter(assignment)
            self._close()
            if why:
                log.warning("ring %d: %s", assignment.ring, why)

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
            if self._rendezvous is not None:
                gradients.keep_norms()
            self._in_step = True
            self._stepped = self._made = self._skips = False
            self._skipping = self._steps = 0
        gradients.share = share
        gradients.lead = lead
        if self._group is None and self._rendezvous is not None and not self._rendezvous.authorized:
            gradients.broken = _UNAUTHORIZED
        alone = self._group is None and share == 1.0
        if alone:
            gradients.phase = Phase.IDLE
            gradients.reduced = not gradients.broken
        else:
            gradients.phase = Phase.REDUCE if last else Phase.GATHER

    def warm_up(self) -> None:
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

    @property
    def sync_gradients(self) -> bool:
        """Whether the minibatch at hand is the last one of its update."""
        return not self._in_step or self.gradients.phase is not Phase.GATHER

    @property
    def steps(self) -> int:
        """Updates of the model, that of an optimizer's step just now included."""
        return self.replica.position.step + (self._in_step and self._made)

    def stepped(self) -> None:
        """A step was asked for, though a scaler may leave it out."""
        self._stepped = True
        self._made |= self._in_step and self.live

    def _before_step(self, *_: Any) -> None:
        self.stepped()
        if not self.live:
            # An optimizer leaves a parameter without a gradient alone.
            self._show = self.gradients.hide()
        elif self._in_step and (
            self._rendezvous is not None or self.gradients.phase is Phase.REDUCE
        ):
            self._steps += 1
            self.gradients.check_known(self.replica.optimizers)

    def _after_step(self, *_: Any) -> None:
        if self._show is not None:
            self._show()
            self._show = None

    def set_update_size(self, records: int) -> None:
        """The update that begins takes so many records, of all members together."""
        self._records = records
        if self._rendezvous is None:
            return
        position = self.replica.position
        place = json.dumps(
            [position.pass_index, position.records, records, position.data, position.epochs]
        )
        self._place = zlib.crc32(place.encode())

    def settle(self) -> bool:
        """Counts an update that the script made before it left its loop; whether it had."""
        made = self._in_step and self._made
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
            gradients.drop()
            ring, step = self.ring, self.replica.position.step
            self.join()
            # Another member of that ring had the sum, with this one's part, and gave its state.
            return self.ring == ring + 1 and self.replica.position.step == step + 1
        position = self.replica.position
        position.step += 1
        position.records += self._records
        if self._group is not None:
            position.left_out += round((1 - min(1.0, gradients.shares)) * self._records)
        self._steps = 0
        if not self._stepped:
            gradients.expect_fresh()
        if 0 < self._skipping < self.world:
            self._even_out()
        return True

    def _even_out(self) -> None:
        """A member whose script left a batch out takes over what the others did to the model."""
        assert self._group is not None
        self._whole = not self._skips
        self._skips, self._skipping = False, 0
        try:
            heal(self._group, self.replica, self._progress())
            self._whole = True
        except RingBrokenError as error:
            log.warning("ring %d broke: %s", self.ring, error)
            self.join()

    def reform_if_asked(self) -> None:
        """Between two updates: forms another ring if somebody waits for it."""
        if self._rendezvous is None:
            return
        if self._stale or (self._group is None and self._rendezvous.is_stale(self.ring)):
            self._stale = False
            if not self._rendezvous.leaving:
                self.join()
            elif self.last and self.rank == 0 and self._rendezvous.awaited(self.ring):
                self.join(handing_over=True)
            else:
                raise DismissedError("asked to leave", last=self.last)

    @property
    def last(self) -> bool:
        """Whether no member stays that has the model: all were asked to leave."""
        return self._group is None or self._leaving == self.world

    def idle(self) -> None:
        """There is nothing to train: forms another ring if a member is gone, or somebody waits."""
        if self._rendezvous is not None and self._rendezvous.is_stale(self.ring):
            if self._rendezvous.leaving:
                raise DismissedError("asked to leave", last=self.last or self._rendezvous.stopping)
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
        """The script went on without a backward; the others wait for this member's part.

        What they then do to the model (clip, scale, step) is not known here: see `_even_out`.
        """
        if not self._warned:
            self._warned = True
            log.warning("a batch was left without backward(): its records count, with no gradient")
        self._skips = True
        self.complete()
        self.gradients.drop()

    # ---- what travels with the gradients ----

    def _fill_lanes(self, numbers: torch.Tensor) -> None:
        assert self._rendezvous is not None
        step = self.replica.position.step
        digest = 0
        if self._check_every and step % self._check_every == 0:
            self._digest_step = step
            self._digest = digest = self.replica.digest()
        said = ControlFlags(
            stale=self._rendezvous.is_stale(self.ring),
            authorized=self._rendezvous.authorized,
            skips=self._skips,
            leaving=self._rendezvous.leaving,
            place=self._place,
            digest=digest,
        )
        numbers.copy_(torch.tensor(said.numbers()))

    def _refuse(self, numbers: list[float]) -> str:
        sums = ControlSums(numbers, self.world)
        self._stale, self._skipping, self._leaving = sums.stale > 0, sums.skip, sums.leaving
        if not sums.authorized:
            return _UNAUTHORIZED
        if not sums.same_place(self._place):
            position = self.replica.position
            raise DivergedError(
                f"the processes are not at the same place: this one is at record "
                f"{position.records:,} of pass {position.pass_index}, over {position.data}; every "
                "process must go through the same loaders and evaluations, over the same data, "
                "and leave a loop at the same job.step"
            )
        if self._digest_step == self.replica.position.step:
            self._digest_step = -1
            if not sums.same_digest(self._digest):
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
        self.replica.restore(folder, strategy="allreduce", values_only=values_only)
