"""The model of a file with the contract, as a member of a ring: what it does besides training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.contract import Contract
from torch_edl.data.task_space import TaskSpace
from torch_edl.engine import replica
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.errors import ContractError
from torch_edl.nn.embedding import Table
from torch_edl.tables.watermarks import Watermarks


class ReplicatedModel:
    """See :class:`~torch_edl.engine.base.Holder`.

    Args:
        space: the tasks of the job: positions become watermarks of tasks in checkpoints.

    Raises:
        ContractError: the model has embeddings whose rows belong on servers.
    """

    def __init__(self, contract: Contract, engine: RingEngine, space: TaskSpace) -> None:
        self.model: nn.Module = engine.replica.model
        self._engine = engine
        self._space = space
        tables = [n for n, m in self.model.named_modules() if isinstance(m, Table)]
        if tables:
            raise ContractError(
                f"{contract.path}: {', '.join(tables)}: rows of torch_edl.nn embeddings are not "
                "summed over a ring; use --strategy ps, or torch.nn.Embedding"
            )

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Any], Any]]:
        """The model as it is."""
        yield lambda features: features

    def snapshot(self) -> Callable[[str], Snapshot]:
        """The replica of now, in memory; what writes it to a folder, from any thread."""
        state = self._engine.replica.copy()

        def write(directory: str) -> Snapshot:
            files = replica.write(state, Path(directory))
            position = state.header["position"]
            return Snapshot(
                files=files,
                watermarks=self._marks(position["records"]),
                version=position["step"],
            )

        return write

    def close(self) -> None:
        """There is nothing to let go of."""

    def _marks(self, position: int) -> Watermarks:
        if position >= self._space.total_records:
            return Watermarks(self._space.total)
        task, offset = self._space.at(position)
        return Watermarks(task, {task: offset} if offset else {})
