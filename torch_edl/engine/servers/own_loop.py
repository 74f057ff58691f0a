"""A training loop of the user's own, on parameter servers: pull, whatever the script does, push.

The script runs its model by itself, so rows of embeddings are pulled when the model asks for them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from torch_edl.config import JobConfig
from torch_edl.data.loader import Window
from torch_edl.engine.base import Committed
from torch_edl.engine.servers.parameter_server import ParameterServerStrategy, Planned
from torch_edl.engine.servers.row_gradient import bind_gradients
from torch_edl.engine.servers.rows import Plan
from torch_edl.errors import ServersLostError
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.ps_client.client import Floats, TableIds

log = logging.getLogger(__name__)


@dataclass
class _Batch:
    """A minibatch of a script's own loop."""

    plan: Plan
    versions: list[int]
    collected: bool = False


class OwnLoop(ParameterServerStrategy):
    """Each minibatch is a :meth:`begin`, a :meth:`collect` and a :meth:`commit`.

    Args: see :class:`ParameterServerStrategy`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any | None,
        *,
        config: JobConfig,
        token: str,
        progress: WorkerStatus,
    ) -> None:
        super().__init__(
            None, model, optimizer, scheduler, config=config, token=token, progress=progress
        )
        self.lost: ServersLostError | None = None
        """Rows could not be pulled since :meth:`begin`: what was computed counts for nothing."""
        self._forgiving = False
        self._batch = _Batch(Plan([[]]), [])
        bind_gradients(self._rows)

    def begin(self, *, keep_gradients: bool = False) -> None:
        """The parameters of now; rows are pulled when the model asks for them.

        Args:
            keep_gradients: leave those that the script left at its parameters.

        Until :meth:`commit` or :meth:`end` servers that are lost raise nothing in the model.

        Raises:
            ServersLostError: they cannot be had.
        """
        self.lost = None
        result = self._servers.pull([], known=self._known).wait()
        self._load(result)
        self._flat.forget(gradients=not keep_gradients)
        self._batch = _Batch(Plan([[]]), result.versions)
        self._rows.use(self._batch.plan, 0)
        self._forgiving = True

    @property
    def collected(self) -> bool:
        """Whether the script stepped its optimizer in this batch."""
        return self._batch.collected

    def collect(self) -> None:
        """Takes the gradients that the model has now: of one backward, or of several."""
        if self.lost is None and self._client is not None:
            self._flat.collect()
            self._flat.clear_gradients()
        self._batch.collected = True
        self._rows.gradients_taken = True

    def commit(self, window: Window, retired_before: int) -> Committed:
        """Pushes what was collected since :meth:`begin`, as the gradient of a window without
        batches; it is in the model when this returns.

        Raises:
            ServersLostError: nothing is known of it.
        """
        self.end()
        if self.lost is not None:
            raise self.lost
        batch = self._batch
        # Without a step nothing of the batch is wanted; its records count all the same.
        plan = batch.plan if batch.collected else Plan([[]])
        pushed = self._push(
            Planned(window, plan), int(batch.collected), 0, batch.versions, retired_before
        )
        pushed.push.wait()
        return pushed.committed

    def end(self) -> None:
        """The model is used for itself from now on, and errors are the user's to see."""
        self._forgiving = False

    def _pull_rows(self, tables: Sequence[TableIds]) -> Sequence[Floats]:
        if not self._forgiving:
            return super()._pull_rows(tables)
        if self.lost is None:
            try:
                return super()._pull_rows(tables)
            except ServersLostError as error:
                log.warning("no rows: %s", error)
                self.lost = error
        # The script is in the middle of a batch that counts for nothing now.
        return [np.zeros((len(t.ids.unique), t.dim), np.float32) for t in tables]
