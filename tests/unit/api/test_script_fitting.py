"""A script fits its preprocessing, alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import IterableDataset, Subset
from torch.utils.data import default_convert as tensors

import torch_edl
from torch_edl.checkpoint import layout
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.errors import UsageError
from torch_edl.preprocessing import Columns, column

TABLE = pa.table({"word": [f"w{n % 5}" for n in range(90)], "x": [n / 3 for n in range(90)]})


class Rows:
    """A sample is a dict."""

    def __len__(self) -> int:
        return len(TABLE)

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = TABLE.slice(number, 1).to_pylist()[0]
        return {"word": row["word"], "x": torch.tensor(row["x"], dtype=torch.float64)}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from Rows()


def columns() -> Columns:
    return Columns(id=column("word").vocabulary(9), x=[column("x").normalize()])


@pytest.fixture
def files(tmp_path: Path) -> str:
    pq.write_table(TABLE.slice(0, 40), tmp_path / "part-0.parquet")
    pq.write_table(TABLE.slice(40), tmp_path / "part-1.parquet")
    return str(tmp_path / "part-*.parquet")


def test_files_and_datasets_give_what_one_pass_gives(files: str) -> None:
    whole = columns().fit(TABLE).to_bytes()
    job = torch_edl.init(several=True)
    for data in (files, [files], Rows()):
        assert job.fit(columns(), data).to_bytes() == whole
    for data, message in (
        (Stream(), "Stream cannot be cut into tasks"),
        (Subset(Rows(), []), "there are no records"),
        (iter([]), "list_iterator cannot be cut into tasks"),
    ):
        with pytest.raises(UsageError, match=message):
            job.fit(columns(), data)
    job.close()


def test_samples_and_batches_of_samples_become_the_same() -> None:
    made = columns().fit(TABLE)
    rows = [Rows()[number] for number in range(3)]
    inputs = made(rows)  # as a collate_fn gets them
    batch = made(torch.utils.data.default_collate(rows))  # as a loop gets them without
    table = tensors(made(TABLE.slice(0, 3)))
    for name, value in batch.items():
        assert torch.equal(value, inputs[name])
        assert torch.equal(value, table[name])
    with pytest.raises(UsageError, match=r"no column 'word' .* of the columns 'x'"):
        made([{"x": 1.0}])


def test_what_was_fitted_goes_with_checkpoints(files: str, tmp_path: Path) -> None:
    def train(data: Any, resume: bool) -> Columns:
        job = torch_edl.init(
            checkpoint_dir=tmp_path / "c", checkpoint_every=2, resume=resume, several=True
        )
        made = job.fit(columns(), data)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.prepare(model, optimizer)
        for batch in job.loader(files, batch_size=30, collate_fn=lambda t: tensors(made(t))):
            optimizer.zero_grad()
            model(batch["x"]).sum().backward()
            optimizer.step()
        job.close()
        return made

    first = train(files, resume=False)
    newest = layout.newest(tmp_path / "c")
    assert newest is not None
    assert PREPROCESSING_FILE in layout.read(newest).files
    assert train([{"word": "other", "x": 1.0}], resume=True).to_bytes() == first.to_bytes()
    job = torch_edl.init(checkpoint_dir=tmp_path / "c", resume=True, several=True)
    with pytest.raises(UsageError, match="is of other columns"):
        job.fit(Columns(id=column("word").vocabulary(3)), files)
    job.close()
