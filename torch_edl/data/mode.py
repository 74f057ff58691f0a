"""The purposes of a call of ``feed``."""

from __future__ import annotations

from enum import StrEnum

from torch_edl.wire import master_pb2 as pb


class Mode(StrEnum):
    """The argument ``mode`` of ``feed``, which equals its text: ``mode == "training"``."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


MODES = {
    pb.TASK_TRAIN: Mode.TRAINING,
    pb.TASK_EVALUATE: Mode.EVALUATION,
    pb.TASK_PREDICT: Mode.PREDICTION,
}
"""Mode by kind of task, for all kinds of tasks that read records."""
