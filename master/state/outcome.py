"""What a job is decided to be: its strategy, and how it ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from torch_edl.config import JobConfig
from torch_edl.engine.choose import Choice, EmbeddingSize, choose
from torch_edl.wire import master_pb2 as pb

WHO_STARTS_AGAIN = {"ps": "the servers", "local": "the worker", "allreduce": "the workers"}


@dataclass(frozen=True)
class Outcome:
    """How the job ends."""

    state: str
    """``finished``, ``failed`` or ``stopped``."""
    exit_code: int
    error: str = ""
    traceback: str = ""
    usage_error: bool = False

    @property
    def told(self) -> str:
        """What agents hear of it; empty if it ended well."""
        return f"the job was stopped: {self.error}" if self.state == "stopped" else self.error


class Restoring(TypedDict):
    """What a life of the model begins with."""

    restore: str
    values_only: bool


def choose_strategy(config: JobConfig, model: pb.ReportModelRequest, workers: int) -> Choice:
    """The strategy of a job, from what its model file holds.

    Raises:
        UsageError: the explicit wish cannot be had.
    """
    trains = config.trains
    return choose(
        config.train.strategy,
        [
            EmbeddingSize(
                name=e.name, num_embeddings=e.num_embeddings, dim=e.dim, dynamic=e.dynamic
            )
            for e in model.embeddings
        ],
        max_workers=workers,
        large_embedding=config.train.large_embedding,
        # Nothing is optimized in an evaluation or a prediction.
        optimizer_error=model.optimizer_error if trains else "",
        trains=trains,
        script=config.kind == "script",
    )
