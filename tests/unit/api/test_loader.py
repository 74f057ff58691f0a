"""What scripts read of a DataLoader, loops that are left, and loops within loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

from tests.unit.engine.ring.rings import Member, office
from torch_edl.checkpoint import layout
from torch_edl.errors import UsageError

DATA = TensorDataset(torch.randn(22, 3), torch.arange(22) % 2)


def prepared(job: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    return model, optimizer


def train(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def test_a_loader_has_what_scripts_read_of_a_dataloader(jobs: Any) -> None:
    job = jobs()
    options: dict[str, Any] = {"batch_size": 4, "drop_last": True, "num_workers": 2}
    ours, theirs = job.loader(DATA, **options), DataLoader(DATA, **options)
    for name in ("dataset", "batch_size", "drop_last", "num_workers", "pin_memory", "collate_fn"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.collate_fn is default_collate
    assert len(ours.sampler) == len(theirs.sampler)
    ours.sampler.set_epoch(3)
    with pytest.raises(UsageError, match="the job deals the records out"):
        next(iter(ours.sampler))


def test_numbers_of_numpy_may_be_in_a_checkpoint(jobs: Any, tmp_path: Path) -> None:
    job = jobs(checkpoint_dir=tmp_path, seed=np.int64(3))
    model, optimizer = prepared(job)
    for x, y in job.loader(DATA, batch_size=np.int64(4), shuffle=np.bool_(True)):
        train(model, optimizer, x, y)
    job.close()
    newest = layout.newest(tmp_path)
    assert newest is not None
    assert layout.read(newest).steps == 6


def test_files_have_a_length_too(jobs: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n" + "1\n" * 9)
    loader = jobs().loader(str(tmp_path / "a.csv"), batch_size=2, epochs=3, shuffle=True)
    assert len(loader.dataset) == len(loader.sampler) == 9


def test_a_loader_that_was_left_half_read_counts_its_last_update(jobs: Any, tmp_path: Path) -> None:
    """The script holds the iterator to its end; the checkpoint has the record and the weights."""
    job = jobs(checkpoint_dir=tmp_path)
    model, optimizer = prepared(job)
    batches = iter(job.loader(DATA, batch_size=4))
    for x, y in batches:
        train(model, optimizer, x, y)
        if job.step == 2:
            break
    job.close()
    newest = layout.newest(tmp_path)
    assert newest is not None
    assert layout.read(newest).data == {"pass": 0, "records": 8}
    assert next(batches, None) is None


def test_a_loop_that_was_interrupted_does_not_stand_in_the_way(jobs: Any) -> None:
    """The traceback of an interrupt keeps the iterator alive, in the middle of an update."""
    job = jobs()
    model, optimizer = prepared(job)
    kept = iter(job.loader(DATA, batch_size=4))
    x, y = next(kept)
    train(model, optimizer, x, y)
    next(kept)
    before = model.weight.detach().clone()
    batches = 0
    for x, y in job.loader(DATA, batch_size=4, epochs=2):
        train(model, optimizer, x, y)
        batches += 1
    assert batches == 12
    assert job.step == 13
    assert not torch.equal(before, model.weight)
    kept.close()
    assert job.step == 13


def test_a_loop_within_a_loop_is_refused(jobs: Any) -> None:
    job = jobs()
    model, optimizer = prepared(job)
    outer = iter(job.loader(DATA, batch_size=4))
    train(model, optimizer, *next(outer))
    for x, y in job.loader(DATA, batch_size=12):
        train(model, optimizer, x, y)
    with pytest.raises(UsageError, match="inside this loop"):
        next(outer)


def test_what_is_gathered_is_kept_for_those_who_come_later(jobs: Any) -> None:
    job = jobs()
    prepared(job)
    assert job.collect(lambda rank, world: b"%d/%d" % (rank, world), len) == 1
    assert job.gather(lambda rank, world: b"part") == [b"part"]
    engine = job._part.engine
    assert engine is not None
    assert engine.replica.position.results == {"0": 1, "1": None}
    assert engine.replica.position.progress == 2
    assert job.step == 0


def test_a_file_that_is_added_between_two_passes_is_not_trained(jobs: Any, tmp_path: Path) -> None:
    """Processes that list the files at different times would train on different data."""
    job = jobs()
    model = nn.Linear(1, 1)
    job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 4)
    loader = job.loader(str(tmp_path / "*.csv"), batch_size=2)
    seen = []
    for _ in range(2):
        seen.append(sum(len(batch["x"]) for batch in loader))
        (tmp_path / "b.csv").write_text("x\n" + "1\n" * 4)
    assert seen == [4, 4]
    assert len(job.loader(str(tmp_path / "*.csv"), batch_size=2)) == 4


def listing(member: Member, folder: Path) -> None:
    job = member.job()
    first = job.loader(str(folder / "*.csv")).given
    member.tell(len(first))
    member.hear()
    member.tell(job.loader(str(folder / "*.csv")).given == first)


def test_the_processes_of_a_job_list_files_once(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with office(1) as one:
        member = one.start(listing, tmp_path)
        assert member.hear() == 1
        (tmp_path / "b.csv").write_text("x\n1\n")
        member.tell("on")
        assert member.hear()
