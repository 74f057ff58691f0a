"""The state of a job that a script can read: rank, world size, progress and metrics."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch_edl.api.in_ring import ScriptInRing
from torch_edl.master_client.session import MasterSession
from torch_edl.training.loop import Meter

if TYPE_CHECKING:
    from torch_edl.api.on_servers import ScriptOnServers


class JobState:
    """The readable state of a job; the subclass :class:`~torch_edl.api.job.Job` changes it."""

    def __init__(self, session: MasterSession | None, meter: Meter) -> None:
        self.meter = meter
        """The metrics that this process has logged."""
        self._session = session
        self._trained = False  # the other processes have completed the training
        self._part: ScriptInRing | ScriptOnServers | None = None

    @property
    def rank(self) -> int:
        """The rank of this process among the processes that train now; the rank may change."""
        return self._place[0]

    @property
    def world_size(self) -> int:
        """The number of processes that train now; the number may change."""
        return self._place[1]

    @property
    def _place(self) -> tuple[int, int]:
        formed = None if self._part is None else self._part.place
        # Before the first ring, and on servers, the launcher's environment holds the rank.
        env = os.environ
        return formed or (int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1")))

    @property
    def is_main(self) -> bool:
        """Whether this process is rank 0, which prints and writes files.

        The value may change with ``rank``, so a script must read it before each write.
        """
        return self.rank == 0 and not self.late

    @property
    def prepared(self) -> bool:
        """Whether :meth:`prepare` was called."""
        return self._part is not None

    @property
    def on_servers(self) -> bool:
        """Whether the model is on parameter servers."""
        return self._part is not None and self._part.on_servers

    @property
    def restored(self) -> bool:
        """Whether the job was restored from a checkpoint."""
        return self._part is not None and self._part.restored

    @property
    def step(self) -> int:
        """Number of updates of the model; on parameter servers, number of batches that this process
        has trained. Right after ``optimizer.step()`` the number includes the newest update."""
        return 0 if self._part is None else self._part.step

    @property
    def sync_gradients(self) -> bool:
        """Whether the current batch is the last one of its update, so that ``optimizer.step()``
        changes the model."""
        return self._part is None or self._part.sync_gradients

    def metrics(self) -> dict[str, float]:
        """Return the means of the values that this process has logged since the last call, weighted
        by records. Without logged values, as in an epoch that was trained before the job resumed,
        every value is NaN."""
        return self.meter.take()

    @property
    def catching_up(self) -> bool:
        """Whether this process joined late, and its script repeats completed passes without
        training."""
        if self._part is None or self._trained:
            return self.late
        return self._part.catching_up

    @property
    def late(self) -> bool:
        """Whether other processes have trained in a ring that this process has not joined yet."""
        if self._trained:
            return True
        if self._part is None:
            return self._session is not None and self._session.ring > 0
        return self._part.late

    def log(self, **values: Any) -> None:
        """Log metrics of the current batch: numbers, or tensors of one number.

        The values count once, when the update of the batch is in the model.
        """
        self.meter.note(values)
