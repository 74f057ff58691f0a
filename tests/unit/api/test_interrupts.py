"""Ctrl-C in a process that trains alone: a last checkpoint, of whole updates."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

import torch_edl
from torch_edl.checkpoint import layout


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_after_the_update_with_a_checkpoint(tmp_path: Path, times: int) -> None:
    job = torch_edl.init(checkpoint_dir=tmp_path)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    data = torch.arange(32.0)[:, None]
    came = 0

    def train() -> None:
        nonlocal came
        for x in job.loader(data, batch_size=4):
            came += 1
            if came == 3:
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    try:
        with pytest.raises(KeyboardInterrupt):
            train()
    finally:
        job.ending.finished = False
        job.close()
    assert came == 3
    found = [path.name for path in layout.complete(tmp_path)]
    assert found == ([layout.step_dir(tmp_path, 3).name] if times == 1 else [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
