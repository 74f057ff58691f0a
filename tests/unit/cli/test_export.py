from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import torch_edl
from torch_edl._core import init_rows
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.cli.__main__ import main
from torch_edl.cli.model_file import _of_newest
from torch_edl.config import CheckpointConfig, JobConfig
from torch_edl.errors import CheckpointError
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.pytorch.replica import read_model as state_dict
from torch_edl.pytorch.state_dict import read

START = {"kind": "uniform", "args": {"low": -0.5, "high": 0.5}}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output folder: a linear layer, a bounded table with two trained rows, an unbounded one."""
    folder = tmp_path / "trained"
    (folder / "embeddings").mkdir(parents=True)
    save_file(
        {"fc.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}, folder / "model.safetensors"
    )
    rows = torch.arange(8.0).reshape(2, 4)
    save_file(
        {"ids": torch.tensor([1, 6]), "vectors": rows}, folder / "embeddings/deep.rows.safetensors"
    )
    wild = torch.tensor([-(2**63), 2**63 - 1])
    save_file({"ids": wild, "vectors": rows}, folder / "embeddings/users.safetensors")
    tables = {
        "deep.rows": {
            "dim": 4,
            "num_embeddings": 7,
            "initializer": START,
            "seed": 5,
            "storage_dtype": "int8",
        },
        "users": {"dim": 4, "num_embeddings": 0, "initializer": START, "seed": 5},
    }
    metadata = {"format": 1, "job": "j", "steps": 3, "tables": tables}
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return folder


def edit(output: Path, **fields: object) -> None:
    path = output / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
def test_export(output: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "new" / name
    assert main(["export", str(output), str(file)]) == 0
    got = torch.load(file, weights_only=True) if name.endswith(".pt") else load_file(file)
    assert sorted(got) == ["deep.rows.weight", "fc.bias", "fc.weight", "users.ids", "users.vectors"]
    weight = got["deep.rows.weight"]
    expected = init_rows("deep.rows", 5, "uniform", START["args"], np.arange(7), 4, "int8")
    expected[[1, 6]] = np.arange(8.0).reshape(2, 4)
    np.testing.assert_array_equal(weight.numpy(), expected)
    assert got["users.ids"].tolist() == [-(2**63), 2**63 - 1]
    assert [p.name for p in file.parent.iterdir()] == [name]


def test_blocks_make_no_difference(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = state_dict(output)["deep.rows.weight"]
    monkeypatch.setattr("torch_edl.checkpoint.reader._INIT_ROWS", 2)
    assert torch.equal(state_dict(output)["deep.rows.weight"], whole)


def test_the_export_loads_into_the_plain_module(output: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = torch.nn.ModuleDict({"rows": torch.nn.Embedding(7, 4)})
            self.fc = torch.nn.Linear(3, 2)

    state = state_dict(output)
    plain = {k: v for k, v in state.items() if not k.startswith("users")}
    Net().load_state_dict(plain, strict=True)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_the_export_loads_into_the_class_that_was_trained(
    output: Path, tmp_path: Path, suffix: str
) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = torch.nn.ModuleDict({"rows": torch_edl.nn.Embedding(7, 4)})
            self.tower = torch.nn.ModuleList([torch_edl.nn.Embedding(None, 4, name="users")])
            self.again = self.tower[0]
            self.fc = torch.nn.Linear(3, 2)

    about = json.loads((output / "metadata.json").read_text())
    about["tables"]["users"]["modules"] = ["tower.0", "again"]
    edit(output, **about)
    file = tmp_path / f"model{suffix}"
    assert main(["export", str(output), str(file)]) == 0
    net = Net()
    net.load_state_dict(read(file), strict=True)
    wild = torch.tensor([-(2**63), 2**63 - 1])
    assert torch.equal(net.again(wild), torch.arange(8.0).reshape(2, 4))
    state = state_dict(output)
    assert torch.equal(net.deep["rows"](torch.arange(7)), state["deep.rows.weight"])
    assert {name: value.tolist() for name, value in net.state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }


def test_a_job_is_known_by_its_name(
    output: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    for name, keep in (("kept", CheckpointConfig(output=str(output))), ("not", CheckpointConfig())):
        folder = JobFolder(name)
        folder.dir.mkdir(parents=True)
        config = JobConfig(name=name, model_file="m.py", checkpoint=keep)
        folder.config_file.write_text(config.to_json())
    file = tmp_path / "model.pt"
    assert main(["export", "kept", str(file)]) == 0
    assert torch.load(file, weights_only=True).keys() == state_dict(output).keys()
    assert main(["export", "not", str(file)]) == 2
    assert "the job kept no model; --output DIR" in capsys.readouterr().err
    assert main(["export", "none", str(file)]) == 2
    assert "no such folder, and no such job" in capsys.readouterr().err


def test_the_suffix_says_the_kind(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(output), "m.onnx"]) == 2
    assert "the name must end in .pt or .pth or .safetensors" in capsys.readouterr().err
    for file in ("m.keras", "folder"):
        assert main(["export", str(output), file]) == 2
        assert "one of another framework needs --model-file MODEL.py" in capsys.readouterr().err


def test_a_newer_format_is_refused(output: Path) -> None:
    edit(output, format=2)
    with pytest.raises(CheckpointError, match="format 2, this torch-edl reads 1"):
        state_dict(output)


@pytest.mark.parametrize("damage", ["cut", "missing", "ids", "shape", "tables"])
def test_damage_is_an_error(output: Path, tmp_path: Path, damage: str) -> None:
    items = output / "embeddings/deep.rows.safetensors"
    rows = torch.zeros(2, 4)
    if damage == "cut":
        items.write_bytes(items.read_bytes()[:-8])
    elif damage == "missing":
        items.unlink()
    elif damage == "ids":
        save_file({"ids": torch.tensor([1, 7]), "vectors": rows}, items)
    elif damage == "shape":
        save_file({"ids": torch.tensor([1]), "vectors": rows}, items)
    else:
        edit(output, tables=[1])
    with pytest.raises(CheckpointError):
        state_dict(output)
    assert main(["export", str(output), str(tmp_path / "m.pt")]) == 1
    assert not (tmp_path / "m.pt").exists()


def checkpoint(root: Path, steps: int) -> Path:
    folder = layout.step_dir(root, steps)
    folder.mkdir(parents=True)
    save_file({"fc.weight": torch.full((1,), float(steps))}, folder / "model.safetensors")
    size = (folder / "model.safetensors").stat().st_size
    layout.seal(
        folder,
        Manifest(job="j", strategy="local", steps=steps, files={"model.safetensors": size}),
    )
    return folder


def test_a_checkpoint_that_a_running_job_prunes_is_followed_by_the_next(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1)

    def export(prunes: int, folder: Path) -> str:
        if (manifest := layout.read(folder)).steps <= prunes:
            layout.prune(checkpoint(tmp_path, manifest.steps + 1), keep=1)
        return str(load_file(folder / "model.safetensors")["fc.weight"].item())

    def find() -> str:
        found = layout.trained_model(tmp_path)
        assert found is not None
        return str(found)

    found, text = _of_newest(find, lambda folder: export(3, folder))
    assert (Path(found).name, text) == (layout.step_dir("", 4).name, "4.0")
    with pytest.raises(CheckpointError, match=r"removed 5 checkpoints.*--keep-checkpoints"):
        _of_newest(find, lambda folder: export(99, folder))
    # Damage is none of the job's doing.
    (newest := Path(find())).joinpath("model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{newest.name}.* 0 bytes"):
        layout.trained_model(tmp_path)
