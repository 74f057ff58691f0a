from __future__ import annotations

from typing import Any

import pytest

import torch_edl
from torch_edl.trainer.job import Job


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``torch_edl.init``, and no job left."""
    for name in ("TORCH_EDL_MASTER", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    made: list[Job] = []

    def init(**options: Any) -> Job:
        made.append(torch_edl.init(**options))
        return made[-1]

    yield init
    for job in made:
        job.close()
