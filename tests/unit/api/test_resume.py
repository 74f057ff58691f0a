"""A job that continues from its checkpoint: what may differ then, and what may not."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

from torch_edl.api.job import Job
from torch_edl.errors import UsageError

RECORDS = 200
FIRST = {"batch_size": 4, "shuffle": True}


class Count(nn.Module):
    """A weight for each record, which goes up by one each time that the record counts."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(RECORDS))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return -self.w[batch].sum()


def written(path: Path, numbers: Iterable[int]) -> str:
    path.write_text("id\n" + "".join(f"{n}\n" for n in numbers))
    return str(path)


def run(job: Job, dataset: Any, stop: int = 0, **options: Any) -> list[float]:
    """Train a number of updates, and return how often each record counted."""
    model = Count()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    job.prepare(model, optimizer)
    for batch in job.loader(dataset, **options):
        optimizer.zero_grad()
        model(batch["id"] if isinstance(batch, dict) else batch[0]).backward()
        optimizer.step()
        if job.step == stop:
            break
    job.close()
    return model.w.tolist()  # type: ignore[no-any-return]


def resumed(jobs: Any, folder: Path, dataset: Any, stop: int = 0, **options: Any) -> list[float]:
    return run(jobs(checkpoint_dir=folder, resume=True), dataset, stop, **options)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return written(tmp_path / "a.csv", range(RECORDS))


def begun(jobs: Any, tmp_path: Path, dataset: Any, **options: Any) -> Path:
    """A checkpoint in the middle of the data."""
    folder = tmp_path / "ck"
    run(jobs(checkpoint_dir=folder), dataset, 10, **{**FIRST, **options})
    return folder


@pytest.mark.parametrize(
    ("is_file", "shuffle", "batch_size"),
    [(True, True, 4), (True, False, 16), (False, True, 16)],
    ids=["file", "file in its own order", "dataset"],
)
def test_each_record_counts_once(
    jobs: Any, tmp_path: Path, data: str, is_file: bool, shuffle: bool, batch_size: int
) -> None:
    """Also in other batches, unless a shuffle of files depends on them."""
    dataset = data if is_file else TensorDataset(torch.arange(RECORDS))
    folder = begun(jobs, tmp_path, dataset, shuffle=shuffle)
    options = {"batch_size": batch_size, "shuffle": shuffle}
    assert resumed(jobs, folder, dataset, **options) == [1.0] * RECORDS


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batch_size": 8}, "with batch_size=4; now it is batch_size=8"),
        ({"shuffle": False}, "with shuffle=True; now it is shuffle=False"),
    ],
)
def test_files_are_not_gone_through_in_another_order(
    jobs: Any, tmp_path: Path, data: str, changed: dict[str, Any], words: str
) -> None:
    folder = begun(jobs, tmp_path, data)
    with pytest.raises(UsageError, match=words):
        resumed(jobs, folder, data, **{**FIRST, **changed})


@pytest.mark.parametrize(
    ("other", "numbers"),
    [("a.csv", [0] * RECORDS), ("b.csv", range(RECORDS)), ("", None)],
    ids=["written anew", "another file", "a dataset"],
)
def test_other_data_are_refused_though_they_have_as_many_records(
    jobs: Any, tmp_path: Path, data: str, other: str, numbers: Any
) -> None:
    folder = begun(jobs, tmp_path, data)
    dataset: Any = TensorDataset(torch.arange(RECORDS))
    if other:
        dataset = written(tmp_path / other, numbers)
    now = "data files" if other else "no data files"
    with pytest.raises(UsageError, match=rf"with data files \w+ \(.*\); now it is {now}"):
        resumed(jobs, folder, dataset, **FIRST)


@pytest.mark.parametrize("stop", [10, 0])
def test_a_job_goes_on_for_more_epochs(jobs: Any, tmp_path: Path, data: str, stop: int) -> None:
    folder = tmp_path / "ck"
    run(jobs(checkpoint_dir=folder), data, stop, **FIRST)
    assert resumed(jobs, folder, data, **FIRST, epochs=3) == [3.0] * RECORDS


def test_a_job_that_is_over_says_what_to_raise(
    jobs: Any, tmp_path: Path, data: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "ck"
    run(jobs(checkpoint_dir=folder), data, **FIRST)
    with caplog.at_level(logging.WARNING):
        assert resumed(jobs, folder, data, **FIRST) == [1.0] * RECORDS
    assert "step-0000000050 holds all that this script trains; raise epochs" in caplog.text


def test_another_split_is_told_where_a_job_goes_on(
    jobs: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def split(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return random_split(TensorDataset(torch.arange(RECORDS)), [100, 100], generator)[0]

    folder = begun(jobs, tmp_path, split(0))
    for seed, is_told in ((0, False), (1, True)):
        with caplog.at_level(logging.WARNING):
            resumed(jobs, folder, split(seed), stop=11, **FIRST)
        assert ("stores other samples than when the checkpoint was written" in caplog.text) == (
            is_told
        )
