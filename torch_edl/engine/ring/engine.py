"""A member of a ring of equal replicas that survives the loss of members.

All members take the same steps: each contributes its part of a global batch, the gradients are
summed, and each optimizer makes the same step. The position in the data is part of the shared
state. The remaining members repeat a failed step from the same position, so no record is lost or
counted twice. Members differ by at most one step, if one has completed a collective that another
lost. The most advanced member then sends its state to the others and to new members.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.engine.ring.membership import UNAUTHORIZED, ControlFlags, RingMembership
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.engine.ring.replicated import Phase, Replicated, RingBrokenError
from torch_edl.errors import DismissedError, UsageError
from torch_edl.interfaces import Minibatch, Update
from torch_edl.tables.watermarks import Watermarks

log = logging.getLogger(__name__)


class RingEngine:
    """One member of a ring; see :class:`~torch_edl.interfaces.Engine`.

    Unless ``live`` is True, gradients are hidden from the optimizers, whose steps then do nothing.

    Args:
        rendezvous: forms the rings; None if this process always trains alone.
        check_every: number of updates between comparisons of a parameter checksum; 0 for never.
        on_resize: called after each change of the ring.
        checkpoint: returns the checkpoint to start with if the master names none.
        watermarks: returns the watermarks of a snapshot for a position in the data.
        not_finite: called before a step whose gradients are not finite, with the update, the last
            minibatch of this member, and the rank of the member that computed the gradients; None:
            several did. The update is left out unless the function raises. Without the function,
            gradients are not checked.
    """

    def __init__(
        self,
        model: Replicated,
        rendezvous: RingRendezvous | None,
        *,
        check_every: int = 0,
        on_resize: Callable[[], None] = lambda: None,
        checkpoint: Callable[[], Path | None] = lambda: None,
        watermarks: Callable[[int], Watermarks] = lambda position: Watermarks(),
        not_finite: Callable[[Update, Minibatch, int | None], None] | None = None,
    ) -> None:
        self.replica = replica = model.replica
        self.model = replica.model
        self._watermarks = watermarks
        self.catching_up = False
        """True while the script replays what the ring did before this process joined."""
        self.membership = RingMembership(model, rendezvous, checkpoint)
        self._rendezvous = rendezvous
        self._on_resize = on_resize
        self._flags = ControlFlags(replica, rendezvous, self.membership, check_every)
        self._reducer = model.reducer(ControlFlags.COUNT, self._flags.send, self._flags.receive)
        self._not_finite = not_finite
        if not_finite is not None:
            self._reducer.check_gradients()
        self._detach = model.attach(self._before_step, self._after_step)
        # State of the current update:
        self._pass = 0
        self._records = 0
        self._steps = 0  # optimizer steps that changed the model
        self._current: tuple[Update, Minibatch] | None = None
        self._left_out = False  # the gradients of the update were not finite
        self._warned = False

    # ---- the ring ----

    @property
    def last(self) -> bool:
        """True if no other member keeps the model: all members were asked to leave."""
        return self.membership.group is None or self._flags.leaving == self.membership.world

    def join(self, *, handing_over: bool = False) -> None:
        """Join the next ring; see :meth:`RingMembership.join`."""
        if self._rendezvous is None:
            return
        self._reducer.use(None)
        self._flags.clear()
        self.membership.join(self._steps, handing_over=handing_over)
        self._steps = 0
        self._reducer.use(self.membership.group)
        self._on_resize()

    def reform_if_asked(self) -> None:
        """Join another ring between two updates, if a process waits for it.

        Raises:
            DismissedError: this process was asked to leave.
        """
        rendezvous, membership = self._rendezvous, self.membership
        if rendezvous is None or not (
            self._flags.stale or (membership.group is None and rendezvous.is_stale(membership.ring))
        ):
            return
        if not rendezvous.leaving:
            self.join()
        elif self.last and membership.rank == 0 and rendezvous.awaited(membership.ring):
            self.join(handing_over=True)
        else:
            raise DismissedError("asked to leave", last=self.last)

    def idle(self) -> None:
        """Join another ring while there is no data to train, if a member is lost or a process
        waits.

        Raises:
            DismissedError: this process was asked to leave.
        """
        if self._rendezvous is not None and self._rendezvous.is_stale(self.membership.ring):
            if self._rendezvous.leaving:
                raise DismissedError("asked to leave", last=self.last or self._rendezvous.stopping)
            self.join()

    def close(self, *, finished: bool = False) -> None:
        """Remove the optimizer hooks and leave the ring; see :meth:`RingMembership.leave`."""
        self._detach()
        self._reducer.use(None)
        self.membership.leave(finished=finished)

    # ---- an update ----

    def compare(self, first_records: Mapping[str, str]) -> None:
        """Compare the first records of this pass with those of the other members, in the updates
        that follow; see :meth:`ControlFlags.compare`."""
        self._flags.compare(first_records)

    def begin(self, update: Update, minibatch: Minibatch) -> Any:
        """Begin a minibatch; its gradients are weighted by its records."""
        reducer, rendezvous = self._reducer, self._rendezvous
        alone = self.membership.group is None
        if minibatch.number:
            self._check_pass()
        self._pass = self.replica.position.pass_index
        if reducer.phase is Phase.IDLE:
            reducer.begin_update()
            self._steps, self._records = 0, update.last - update.first
            self._left_out = False
            self._flags.begin_update(self._records)
        if alone and rendezvous is not None and not rendezvous.authorized:
            reducer.fail(UNAUTHORIZED)
        # Rank 0 has the first records of each update.
        reducer.begin_minibatch(
            minibatch.records / update.records,
            last=minibatch.number + 1 == update.count,
            leads=self.membership.rank == 0,
        )
        self._current = update, minibatch
        return minibatch.batch

    def backward(self, compute: Callable[[], None] | None) -> bool:
        """Run backward, or take part in the reduction without a gradient."""
        if compute is not None:
            compute()
        elif self._reducer.phase is Phase.REDUCE:
            self._reducer.reduce_nothing()
        return self.live

    def commit(self, update: Update) -> bool:
        """End an update.

        Returns:
            False if the ring broke before any member had completed the update. This process is then
            in the next ring, where the records are trained again.
        """
        self._check_pass()
        return self._finish()

    def _check_pass(self) -> None:
        if self.replica.position.pass_index != self._pass:
            raise UsageError(
                "another loop over a loader, or an evaluation, began inside this loop; put it "
                "after the loop (an epoch each: epochs=1)"
            )

    def _finish(self) -> bool:
        reducer, position = self._reducer, self.replica.position
        if reducer.phase is Phase.REDUCE:
            self._skip()
        if reducer.phase is Phase.BROKEN:
            ring, step = self.membership.ring, position.step
            log.warning("ring %d broke: %s", ring, reducer.failure)
            reducer.undo_update()
            self.join()
            # Another member of that ring completed the sum, with this part, and sent its state.
            return self.membership.ring == ring + 1 and self.replica.position.step == step + 1
        reducer.end_update()
        at = position.records
        position.step += 1
        position.records += self._records
        if self._left_out:
            position.left_out += self._records
            position.nan_updates += 1
        elif self.membership.group is not None:
            # Records that are left out because they kill members count as damaged instead.
            skipped = self.membership.skipped((at, position.records))
            left_out = round((1 - min(1.0, reducer.covered)) * self._records) - skipped
            position.left_out += max(0, left_out)
        if not self._steps:
            reducer.forbid_accumulation()
        self._steps, self._current = 0, None
        if 0 < self._flags.skipped < self.membership.world:
            self._synchronize()
        return True

    def settle(self) -> bool:
        """Count the update if the optimizer had stepped when the script left its loop."""
        if made := self._stepped:
            self._finish()
        self._reducer.end_update()
        return made

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Ignore every backward in the ``with`` block, which warms up a process before it joins."""
        self._reducer.begin_warm_up()
        try:
            yield
        finally:
            self._reducer.undo_update()

    @property
    def live(self) -> bool:
        """True if optimizer, scheduler and scaler may change the model now."""
        if self._reducer.phase is Phase.IDLE:
            return not self.catching_up
        return self._reducer.phase in (Phase.LOCAL, Phase.REDUCED)

    @property
    def broken(self) -> bool:
        """True if the ring broke, so that the update must be repeated."""
        return self._reducer.phase is Phase.BROKEN

    @property
    def sync_gradients(self) -> bool:
        """True if the current minibatch is the last one of its update."""
        return self._reducer.phase not in (Phase.ACCUMULATE, Phase.ACCUMULATED)

    @property
    def steps(self) -> int:
        """Number of model updates, including a step that the optimizer has just made."""
        return self.replica.position.step + self._stepped

    @property
    def _stepped(self) -> bool:
        """True if an optimizer changed the model in the current update."""
        return self._reducer.phase is not Phase.IDLE and self._steps > 0

    def stepped(self) -> None:
        """Count a step that the script requested, even if a gradient scaler skips it."""
        if self._reducer.phase is not Phase.IDLE and self.live:
            self._steps += 1

    def _before_step(self, optimizer: Any) -> None:
        live, reducer = self.live, self._reducer
        if live and self._not_finite is not None and reducer.not_finite(optimizer):
            reducer.leave_out()
            assert self._current is not None
            self._not_finite(*self._current, reducer.at_fault)
            self._left_out, live = True, False
        reducer.before_step(optimizer, live=live)
        self.stepped()

    def _after_step(self) -> None:
        self._reducer.after_step()

    def _skip(self) -> None:
        """Contribute no gradient if the script did not call backward: the other members wait.

        What the other members then do to the model (clip, scale, step) is unknown here; see
        `_synchronize`.
        """
        if not self._warned:
            self._warned = True
            log.warning("a batch was left without backward(): its records count, with no gradient")
        self._flags.skip = True
        self._reducer.reduce_nothing()
        if self._reducer.phase is Phase.REDUCED:
            self._reducer.clear_gradients()

    def _synchronize(self) -> None:
        """Copy the state of another member if this member's script skipped its batch."""
        try:
            self.membership.synchronize(has_model=not self._flags.skip)
        except RingBrokenError as error:
            log.warning("ring %d broke: %s", self.membership.ring, error)
            self.join()

    # ---- agreement of all members ----

    def agree(
        self, make: Callable[[int, int], bytes], wanted: Callable[[], bool] = lambda: True
    ) -> list[bytes] | None:
        """Collect the results of ``make(rank, world)`` from all members, in the order of ranks.

        If the ring breaks, the function is called again in the next ring.

        Args:
            wanted: returns False if no agreement is needed. Called in each ring, because the state
                received from another member may already include the result.

        Returns:
            The results; None if they are not wanted.
        """
        while wanted():
            membership = self.membership
            mine = make(membership.rank, membership.world)
            if membership.group is None:
                return [mine]
            try:
                return membership.group.gather(mine)
            except RingBrokenError as error:
                log.warning("ring %d broke: %s", membership.ring, error)
            self.join()
        return None

    # ---- the model ----

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Any], Any]]:
        yield lambda features: features

    def snapshot(self) -> Callable[[Path], Snapshot]:
        return self.replica.snapshot(self._watermarks(self.replica.position.records))
