"""Values, tables and slots that are read back from files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import save_file

from torch_edl.checkpoint import layout, tensor_files
from torch_edl.checkpoint.export import write_metadata, write_output
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.errors import CheckpointError
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import EmbeddingTable, apply_all
from torch_edl.wire import pserver_pb2 as pb


def test_a_model_of_any_type_of_number_is_written(tmp_path: Path) -> None:
    """Workers of the strategies local and allreduce write such models for the master."""
    model = {
        "double": torch.linspace(0, 1, 5, dtype=torch.float64),
        "brain": torch.linspace(-3, 3, 7, dtype=torch.bfloat16).view(7, 1),
        "half": torch.linspace(0, 1, 3, dtype=torch.float16),
        "flags": torch.tensor([True, False, True]),
        "count": torch.tensor(3),
        "small": torch.arange(3, dtype=torch.int8),
        "float": torch.ones(2, 2),
    }
    folder = layout.step_dir(tmp_path, 1)
    folder.mkdir()
    name = "shard-0-of-1.dense.safetensors"
    safetensors.torch.save_file(model, folder / name)
    size = (folder / name).stat().st_size
    manifest = Manifest(job="j", strategy="allreduce", steps=1, shards=1, files={name: size})
    layout.seal(folder, manifest)
    write_output(folder, tmp_path / "out")
    written = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == model.keys()
    for key, value in model.items():
        # numpy has no bfloat16; float32 holds each of its values.
        wanted = value.float() if value.dtype == torch.bfloat16 else value
        torch.testing.assert_close(written[key], wanted, rtol=0, atol=0)


def test_an_exported_model_without_its_tables_is_refused(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"metadata\.json"):
        CheckpointReader(tmp_path)


def test_slots_are_matched_by_name() -> None:
    """A job may continue with another optimizer: what it shares with the old one it keeps."""
    info = pb.EmbeddingTableInfo(name="t", dim=2, initializer=pb.Initializer(kind="zeros"))

    def table(kind: str, **hyper: float) -> EmbeddingTable:
        config = pb.OptimizerConfig(kind=kind, groups=[pb.ParamGroup(hyper=hyper)])
        return EmbeddingTable(info, 0, Optimizers.from_proto(config))

    old = table("adam")
    old.core.push(np.arange(3), np.ones((3, 2), np.float32), 0.1, 1)
    old.core.begin_snapshot()
    (rows,) = old.snapshot_rows(100)
    new = table("adam", amsgrad=1)
    new.load(rows, old.slot_names)
    new.core.begin_snapshot()
    (again,) = new.snapshot_rows(100)
    assert new.slot_names == ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
    np.testing.assert_array_equal(again.slots[:, :2], rows.slots)
    assert (again.slots[:, 2] == 0).all()


INFO = {
    "dim": 2,
    "num_embeddings": 0,
    "seed": 0,
    "initializer": {"kind": "uniform", "args": {"low": -1.0, "high": 1}},
}
DAMAGED: dict[str, object] = {
    **{f"no-{key}": {k: v for k, v in INFO.items() if k != key} for key in INFO},
    "text": INFO | {"dim": "two"},
    "nothing": INFO | {"dim": 0},
    "half": INFO | {"num_embeddings": 0.5},
    "huge": INFO | {"seed": 1 << 64},
    "no-kind": INFO | {"initializer": {"args": {}}},
    "no-args": INFO | {"initializer": {"kind": "zeros"}},
    "list": INFO | {"initializer": []},
    "args": INFO | {"initializer": {"kind": "zeros", "args": {"a": "b"}}},
    "no-dict": [1],
    "null": None,
}
"""Descriptions of a table that once were a KeyError or a TypeError."""


def checkpoint_of(path: Path) -> Path:
    """Return the folder of a file, sealed as a checkpoint of this file."""
    (path.parent / layout.MANIFEST).unlink(missing_ok=True)
    manifest = {"job": "j", "strategy": "ps", "steps": 200, "shards": 1}
    layout.seal(path.parent, Manifest(**manifest, files={path.name: path.stat().st_size}))
    return path.parent


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_description_of_a_table_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "shard-0-of-1.table-0.safetensors"

    def checkpoint(info: object) -> CheckpointReader:
        about = {"table": "t", "info": json.dumps(info), "slots": "[]", "step": "0"}
        rows = {"ids": np.arange(2), "vectors": np.zeros((2, 2), np.float32)}
        save_file(rows, path, about)
        return CheckpointReader(checkpoint_of(path))

    def export(info: object) -> CheckpointReader:
        folder = tmp_path / "export"
        folder.mkdir(exist_ok=True)
        save_file({"a": np.zeros(3, np.float32)}, folder / layout.EXPORTED_MODEL)
        write_metadata(folder, job="j", steps=1, tables={"t": info})  # type: ignore[dict-item]
        return CheckpointReader(folder)

    for read in (checkpoint, export):
        assert "t" in read(INFO).tables
        problem = r"part of a table: .*damaged|tables\.t.*export it again"
        with pytest.raises(CheckpointError, match=problem):
            read(DAMAGED[name])


WRONG_STEPS = ["", "two", "1.5", "-1", "1_000", "9" * 20, "9" * 5000, "[1]", "null"]


@pytest.mark.parametrize("step", WRONG_STEPS)
def test_a_wrong_number_of_updates_is_an_error_that_names_the_file(
    tmp_path: Path, step: str
) -> None:
    table = tmp_path / "shard-0-of-1.table-0.part-0.safetensors"
    rows = {"ids": np.arange(2), "vectors": np.zeros((2, 2), np.float32)}
    save_file(rows, table, {"table": "t", "info": json.dumps(INFO), "slots": "[]", "step": step})
    with pytest.raises(CheckpointError, match=f"{table}: not a part of a table: "):
        CheckpointReader(checkpoint_of(table))
    dense = tmp_path / "shard-0-of-1.dense.safetensors"  # as earlier versions wrote it
    save_file({"a": np.zeros(3, np.float32)}, dense, {"step": step})
    reader = CheckpointReader(checkpoint_of(dense))
    with pytest.raises(CheckpointError, match=f"{dense}: the number of updates: "):
        reader.dense()


def test_the_step_of_a_file_of_an_earlier_version_is_that_of_each_of_its_parameters(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shard-0-of-1.dense.safetensors"
    weight = np.zeros(3, np.float32)
    save_file({"a": weight, "a@momentum": weight, "b": weight}, path, {"step": "7"})
    values = CheckpointReader(checkpoint_of(path)).dense()
    assert {name: int(value) for name, value in values.items() if "@step" in name} == {
        "a@step": 7,
        "b@step": 7,
    }


def test_a_file_of_dense_values_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shard-0-of-1.dense.safetensors"
    tensor_files.write(path, {"a": np.zeros(3, np.float32)}, {})
    reader, opened, safe_open = CheckpointReader(checkpoint_of(path)), [], safetensors.safe_open

    def open_file(path: Path, framework: str) -> object:
        opened.append(path)
        return safe_open(path, framework)

    monkeypatch.setattr(tensor_files, "safe_open", open_file)
    assert "a" in reader.dense()
    assert opened == [path]


@pytest.mark.parametrize(
    ("values_only", "optimizer"),
    [(False, False), (True, False), (True, True)],
    ids=["resume", "load", "load-optimizer"],
)
def test_the_age_of_a_row_counts_in_the_updates_of_this_job(
    tmp_path: Path, values_only: bool, optimizer: bool
) -> None:
    info = pb.EmbeddingTableInfo(
        name="t", dim=2, initializer=pb.Initializer(kind="zeros"), max_age=10
    )
    hyper = {"lr": 1, "momentum": 0.5}
    config = pb.OptimizerConfig(kind="sgd", groups=[pb.ParamGroup(hyper=hyper)])
    optimizers = Optimizers.from_proto(config)

    def update(table: EmbeddingTable, times: int, *ids: int) -> None:
        for _ in range(times):
            gradient = np.ones((len(ids), 2), np.float32)
            apply_all([(table, np.array(ids), gradient)], [1.0], evict=True)

    old = EmbeddingTable(info, 0, optimizers)
    update(old, 195, 1)
    update(old, 5, 1, 2)
    old.core.begin_snapshot()
    sizes = tensor_files.write_tables([(old, old.step)], tmp_path, "shard-0-of-1")
    manifest = {"job": "j", "strategy": "ps", "steps": 200, "shards": 1}
    layout.seal(tmp_path, Manifest(**manifest, files=sizes))
    source = CheckpointReader(tmp_path, values_only=values_only, optimizer=optimizer)
    assert source.version == 0
    new = source.restore_table(info, optimizers)
    anew = values_only and not optimizer
    assert new.step == (0 if anew else 200)
    # The momentum of row 1 is nearly 2, its limit.
    before = new.core.pull(np.array([1]))
    update(new, 1, 1)
    moved = before - new.core.pull(np.array([1]))
    assert moved == pytest.approx(1 if anew else 2, abs=1e-3)
    update(new, 8, 1)
    assert new.core.size == 2
    update(new, 4, 1)  # a sweep comes each quarter of the age
    assert new.core.size == 1
