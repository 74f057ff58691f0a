"""Which ring this process is in: how it joins a ring, with the state of its members, and leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from torch_edl.data.resuming import records_of
from torch_edl.engine.ring.group import Group, RingBrokenError
from torch_edl.engine.ring.recovery import NO_MODEL, synchronize
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.engine.ring.replicated import Replicated
from torch_edl.errors import DismissedError
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)

# Optimizer steps within one update that are told apart.
_MAX_STEPS = 16


class Membership:
    """This process's place among those that train.

    Args:
        rendezvous: where rings are formed; None: this process trains alone, for good.
        checkpoint: names the checkpoint to begin with where the master names none.
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
        """Number of the newest ring; 0: none yet."""
        self.group: Group | None = None
        """Connects the members of the ring; None: there is no other member."""
        self.joined = rendezvous is None
        """Whether this process is in a ring, or alone for good."""
        self._model = model
        self._replica = model.replica
        self._rendezvous = rendezvous
        self._checkpoint = checkpoint
        self._has_model = rendezvous is None  # one that other members may take

    def join(self, steps: int = 0, *, handing_over: bool = False) -> None:
        """Joins the next ring, and takes over the state that its members share.

        Args:
            steps: of optimizers, made in an update that was not finished.
            handing_over: this process only gives its state to the others; it is asked to leave.

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
        """Gives the state of one member that has the model to those that do not.

        Raises:
            RingBrokenError: it failed; the state comes with the next ring.
        """
        assert self.group is not None
        self._has_model = has_model
        synchronize(self.group, self._replica, self._progress(0))
        self._has_model = True

    def close(self) -> None:
        """Closes the ring: no other member waits for this process."""
        group, self.group = self.group, None
        self.joined = self._rendezvous is None
        if group is not None:
            group.close()

    def leave(self, *, finished: bool) -> None:
        """Leaves the ring, so that the other members need not find out by themselves.

        Args:
            finished: the script is over. Rank 0 writes the output of a script; until its script is
                over, too, the others keep the model for the process that replaces it.

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
        """Ends the collective that is under way in that ring or an earlier one. From any thread."""
        group = self.group
        if group is not None and group.ring <= ring:
            group.interrupt()

    def _progress(self, steps: int) -> int:
        """Grows with all that is done to the model: the member with the most gives its state.

        A script may step one optimizer, and lose the ring before it steps the next one.
        """
        if not self._has_model:
            return NO_MODEL
        return self._replica.position.progress * _MAX_STEPS + min(steps, _MAX_STEPS - 1)

    def _enter(self, ring: pb.Ring, steps: int = 0) -> bool:
        """Forms a ring with the others; False if that failed."""
        assert self._rendezvous is not None
        rank, size = list(ring.workers).index(self._rendezvous.worker_id), len(ring.workers)
        self.ring = ring.number
        try:
            if size > 1:
                # From here on the master's word that a member is gone ends what is under way.
                self.group = self._model.connect(
                    ring.store, ring.number, rank, size,
                    host=self._rendezvous.host, meet_s=self._rendezvous.meet_s,
                )  # fmt: skip
            # The others wait as long as it takes to read.
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
        self._rendezvous.joined(ring.number, self._replica.position.records)
        return True

    def _restore_first(self, ring: pb.Ring) -> None:
        """No member has a trained model: begins with a checkpoint, or with what was built."""
        own, values_only = self._checkpoint(), False
        if ring.restored_from:
            own, values_only = Path(ring.restored_from), ring.values_only
        elif own is not None:
            log.info("going on from %s", own)
        if own is not None:
            manifest = self._replica.restore(own, values_only=values_only)
            if manifest is not None and manifest.strategy == "local":  # which leases its tasks
                self._replica.position.records = records_of(own, manifest)

    def _stand_by(self, rendezvous: RingRendezvous) -> None:
        while (ring := rendezvous.stand_by(self.ring, self._progress(0))) is not None:
            log.info("ring %d: giving the model to new members", ring.number)
            self._enter(ring)
            self.close()
