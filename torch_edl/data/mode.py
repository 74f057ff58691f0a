"""What a call of ``feed`` is for."""

from __future__ import annotations

from enum import StrEnum

from torch_edl.wire import master_pb2 as pb


class Mode(StrEnum):
    """The ``mode`` that ``feed`` is called with, which equals its text: ``mode == "training"``."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


MODES = {
    pb.TASK_TRAIN: Mode.TRAINING,
    pb.TASK_EVALUATE: Mode.EVALUATION,
    pb.TASK_PREDICT: Mode.PREDICTION,
}
"""By the kind of a task that reads records."""
