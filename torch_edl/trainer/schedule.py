"""When a trainer steps its scheduler, and what that is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from torch_edl.errors import UsageError


class Schedule:
    """A scheduler and its interval; see :class:`torch_edl.ElasticTrainer`.

    Raises:
        UsageError: the two do not go together.
    """

    def __init__(self, scheduler: Any, interval: str) -> None:
        if interval not in ("step", "epoch"):
            raise UsageError(f"scheduler_interval={interval!r}: 'step' or 'epoch'")
        self._judges = isinstance(scheduler, ReduceLROnPlateau)
        if self._judges and interval == "step":
            raise UsageError(
                "scheduler=ReduceLROnPlateau(...): it judges the loss of an epoch, but "
                "scheduler_interval is 'step'; write scheduler_interval='epoch'"
            )
        self._scheduler = scheduler
        self._interval = interval

    def check_servers(self) -> None:
        """Raises UsageError if parameter servers cannot follow it."""
        if self._scheduler is not None and self._interval == "epoch":
            raise UsageError(
                "scheduler_interval='epoch': on parameter servers the updates of all processes "
                "drive the scheduler; use 'step', with as many steps as an epoch has"
            )

    def after_update(self) -> None:
        """An update was made."""
        if self._scheduler is not None and self._interval == "step":
            self._scheduler.step()

    def after_epoch(self, figures: Mapping[str, float]) -> None:
        """An epoch is over.

        Args:
            figures: of it, the same in all processes, or their rates would part.
        """
        if self._scheduler is None or self._interval != "epoch":
            return
        if not self._judges:
            self._scheduler.step()
            return
        loss = figures.get("eval_loss", figures.get("loss"))
        if loss is not None:  # a job may go on from the very end of an epoch
            self._scheduler.step(loss)
