"""The output of a job, which the master writes from the parts of a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from torch_edl.checkpoint import layout, tensor_files
from torch_edl.checkpoint.export import write_metadata, write_output
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.errors import CheckpointError
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import EmbeddingTable
from torch_edl.wire import pserver_pb2 as pb

ROWS, DIM = 300_000, 32


def _table(kind: str) -> EmbeddingTable:
    info = pb.EmbeddingTableInfo(name="t", dim=DIM, initializer=pb.Initializer(kind="normal"))
    config = pb.OptimizerConfig(kind=kind, groups=[pb.ParamGroup(hyper={})])
    return EmbeddingTable(info, 0, Optimizers.from_proto(config))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parts of 115 MB together: a third of that is vectors, the rest the slots of Adam."""
    folder = layout.step_dir(tmp_path_factory.mktemp("saved"), 1)
    folder.mkdir()
    table = _table("adam")
    table.core.push(np.arange(ROWS) * 7, np.ones((ROWS, DIM), np.float32), 0.1, 1)
    table.core.begin_snapshot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_files, "PART_BYTES", 60 << 20)
        sizes = tensor_files.write_tables([(table, 1)], folder, "shard-0-of-1")
    assert sum("part" in name for name in sizes) == 2
    manifest = Manifest(job="j", strategy="ps", steps=1, shards=1, files=sizes, versions=(1,))
    layout.seal(folder, manifest)
    return folder


_EXPORT = """
import re, sys
from torch_edl.checkpoint.export import write_output
def most():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) << 10
before = most()
write_output(sys.argv[1], sys.argv[2])
print(most() - before)
"""


def test_an_export_needs_little_memory(checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _EXPORT, str(checkpoint), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Half of what is 38 MB are pages of the mapped output; the parts were 115 MB at once.
    assert int(done.stdout) < 70 << 20
    found = load_file(tmp_path / "out" / "embeddings" / "t.safetensors")
    np.testing.assert_array_equal(found["ids"], np.arange(ROWS) * 7)
    want = dict.fromkeys((0, 7, ROWS // 2 * 7, (ROWS - 1) * 7))
    for path in checkpoint.glob("*part*"):
        part = tensor_files.read(path)
        for at, id in enumerate(part["ids"].tolist()):
            if id in want:
                want[id] = part["vectors"][at]
    for id, vector in want.items():
        np.testing.assert_array_equal(found["vectors"][id // 7], vector)


@pytest.mark.parametrize("place", ["ids", "vectors"])
def test_a_damaged_part_is_no_model(checkpoint: Path, tmp_path: Path, place: str) -> None:
    part = sorted(checkpoint.glob("*part*"))[-1]
    whole = part.read_bytes()
    content = tensor_files.read(part)[place]
    at = whole.index(content.tobytes()[:64]) + content.nbytes - 1
    part.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    try:
        with pytest.raises(CheckpointError, match=f"the checksum of {place} does not match"):
            write_output(checkpoint, tmp_path / "out")
    finally:
        part.write_bytes(whole)
    assert list(tmp_path.iterdir()) == []


NAMES = ["../../../x", "/x", "users/a", "..", "", "a\0b"]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_with_a_path_for_a_table_name_writes_nothing(
    checkpoint: Path, tmp_path: Path, name: str
) -> None:
    """A checkpoint may come from elsewhere."""
    crafted = layout.step_dir(tmp_path / "saved", 1)
    crafted.mkdir(parents=True)
    part = sorted(checkpoint.glob("*part*"))[0]
    about = {**tensor_files.metadata(part), "table": name}
    sizes = {part.name: tensor_files.write(crafted / part.name, tensor_files.read(part), about)}
    layout.seal(crafted, Manifest(job="j", strategy="ps", steps=1, files=sizes))
    with pytest.raises(CheckpointError, match="which no table can have"):
        write_output(crafted, tmp_path / "jobs" / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("name", NAMES)
def test_an_output_with_a_path_for_a_table_name_reads_nothing(tmp_path: Path, name: str) -> None:
    tensor_files.write(tmp_path / layout.EXPORTED_MODEL, {}, {})
    initializer = {"kind": "zeros", "args": {}}
    info = {"dim": 2, "num_embeddings": 0, "seed": 0, "initializer": initializer}
    write_metadata(tmp_path, job="j", steps=1, tables={name: info})
    with pytest.raises(CheckpointError, match="which no table can have"):
        CheckpointReader(tmp_path)
