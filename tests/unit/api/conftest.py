from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_edl
from torch_edl.api import opening
from torch_edl.api.job import Job
from torch_edl.config import CheckpointConfig, ClusterConfig, JobConfig, TrainConfig
from torch_edl.launch.jobs import master_host
from torch_edl.wire import services
from torch_edl.wire.channel import Stub


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


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stub]]:
    """``start(**train)``: a master for this process, which is a worker of it from then on."""
    masters: list[master_host.JobMaster] = []
    stubs: list[Stub] = []
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)

    def start_master(
        *,
        strategy: str = "ps",
        servers: int = 2,
        checkpoint_dir: str = "",
        checkpoint_every: int = 0,
        **train: Any,
    ) -> Stub:
        config = JobConfig(
            name=f"served-{len(masters)}",
            kind="script",
            model_file="script.py",
            train=TrainConfig(strategy=strategy, **train),
            cluster=ClusterConfig(max_workers=1, servers=servers),
            checkpoint=CheckpointConfig(dir=checkpoint_dir, every=checkpoint_every),
        )
        master = master_host.start(config)
        masters.append(master)
        monkeypatch.setenv("TORCH_EDL_MASTER", master.address)
        monkeypatch.setenv("TORCH_EDL_TOKEN", master.token)
        stubs.append(Stub(services.MASTER, master.address, master.token))
        return stubs[-1]

    yield start_master
    if opening._current is not None:
        opening._current.close()
    for stub in stubs:
        stub.close()
    for master in masters:
        assert master.hosted is not None
        master.hosted.close()  # its servers follow it
    torch.set_flush_denormal(False)
    signal.signal(signal.SIGTERM, before)
