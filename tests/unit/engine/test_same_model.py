"""Values of another model: what is said of the difference, by whoever loads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from torch_edl.checkpoint.reader import FORMAT
from torch_edl.engine.local import LocalEngine
from torch_edl.errors import CheckpointError
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.pytorch import state_dict
from torch_edl.pytorch.replica import Replica
from torch_edl.wire import master_pb2 as pb

THERE = {"weight": (1, 2), "bias": (1,)}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 3), "weight is (1, 2) there and (3, 2) here, bias is (1) there and (3) here"),
        (nn.Sequential(nn.Linear(2, 1)), "it lacks 0.weight, 0.bias, it has bias, weight besides"),
        (nn.Linear(2, 1, bias=False), "it has bias besides"),
    ],
)
def test_the_difference_is_named(model: nn.Module, message: str, tmp_path: Path) -> None:
    saved = {name: torch.zeros(shape) for name, shape in THERE.items()}
    expected = re.escape(f" is of another model: {message}; use the model file")
    with pytest.raises(CheckpointError, match=f"the saved state{expected}"):
        Replica(model, []).load_model(saved)
    safetensors.torch.save_file(saved, tmp_path / "model.safetensors")
    (tmp_path / "metadata.json").write_text(json.dumps({"format": FORMAT, "tables": {}}))
    optimizer = torch.optim.SGD(model.parameters())
    engine = LocalEngine(Replica(model, [optimizer]), status=WorkerStatus())
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path)) + expected):
        engine.connect(pb.Cluster(restored_from=str(tmp_path), values_only=True))


def test_many_differences_are_some() -> None:
    with pytest.raises(CheckpointError, match="lacks 0, 1, 2 and 97 more;"):
        state_dict.check_model({}, {str(n): () for n in range(100)}, where="it")
