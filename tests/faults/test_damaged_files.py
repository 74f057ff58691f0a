"""Files of jobs that were damaged or edited: each ends in an error of torch-edl, and soon."""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import prepare
from tests.mutations import mutations
from tests.place import Place
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.export import write_output
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.checkpoint.tensor_files import OPTIMIZER_FILE, optimizer_header
from torch_edl.cli import status
from torch_edl.errors import EdlError
from torch_edl.interfaces.platform import LogQuery
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.plugins.audit.verdict import audit
from torch_edl.plugins.dashboard.view import View

_MOST_S, _MOST_MIB = 10.0, 800
"""Seconds that one damaged file may take, and memory that all of them together may add."""
_EACH = 60
"""Mutations of each file."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The folders of two jobs that have finished."""
    place = Place(tmp_path_factory.mktemp("jobs"))
    prepare.write(place / "data", records=64, files=2)
    for name in ("ps", "local"):
        place(
            f"run %/counting/model.py --data data --job-name {name} --strategy {name} "
            f"--batch-size 8 --checkpoint-dir {name}.steps --output {name}.out"
        )
    yield place
    place.close()


def _never_worse_than_our_error(path: Path, read: Callable[[], object], count: int) -> None:
    """Mutate a file, and read it; leave it as it was."""
    whole, before = path.read_bytes(), _peak_mib()
    for what, mutated in mutations(whole, sum(path.name.encode()), count):
        path.write_bytes(mutated)
        began, text = time.monotonic(), ""
        try:
            read()
        except EdlError as error:
            text = str(error)
        except BaseException as error:
            error.add_note(f"{path.name}: {what}")
            raise
        assert len(text) < 2000, what
        assert time.monotonic() - began < _MOST_S, what
    path.write_bytes(whole)
    read()
    assert _peak_mib() - before < _MOST_MIB


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("strategy", ["ps", "local"])
def test_a_damaged_checkpoint(place: Place, tmp_path: Path, strategy: str) -> None:
    newest = layout.newest(place / f"{strategy}.steps")
    assert newest is not None
    folder = tmp_path / "step-0000000001"
    shutil.copytree(newest, folder)

    def read() -> None:
        for values_only in (False, True):
            source = CheckpointReader(folder, values_only=values_only, on_servers=strategy == "ps")
            source.dense()
            for table in source.tables.values():
                list(table.rows())
                list(table.counts())
        if (folder / OPTIMIZER_FILE).exists():
            optimizer_header(folder)
        write_output(folder, tmp_path / "out")

    def read_with_sizes() -> None:
        """Read the checkpoint as one whose manifest has the sizes of the mutated files."""
        manifest = json.loads((folder / layout.MANIFEST).read_text())
        manifest["files"] = {name: (folder / name).stat().st_size for name in manifest["files"]}
        (folder / layout.MANIFEST).write_text(json.dumps(manifest))
        read()

    _never_worse_than_our_error(folder / layout.MANIFEST, read, 3 * _EACH)
    for file in sorted(folder.glob("*.safetensors")):
        _never_worse_than_our_error(file, read_with_sizes, _EACH // 2)
        _remove_header_crc(file)  # such as in files of earlier versions
        _never_worse_than_our_error(file, read_with_sizes, _EACH)


def _remove_header_crc(path: Path) -> None:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    del header["__metadata__"]["header_crc32"]
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + content[8 + size :])


def test_a_damaged_output(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(place / "ps.out", folder)

    def read() -> None:
        layout.trained_model(folder)
        source = CheckpointReader(folder, values_only=True)
        source.dense()
        for table in source.tables.values():
            list(table.rows())

    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        _never_worse_than_our_error(file, read, _EACH)


def test_a_damaged_folder_of_a_job(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path))
    job = LocalJob("ps")
    shutil.copytree(place / "home" / "jobs" / "ps", job.dir)

    def read() -> None:
        job.master()
        report = job.report()
        json.dumps(report, allow_nan=False)
        status._parts(job, report, everything=True)
        view = View(job)
        view.refresh()
        json.dumps([view.page(), view.events(before=2**53)], allow_nan=False)
        job.read_logs(LogQuery(role="events", id=None, tail=None, follow=False), lambda *_: None)
        json.dumps(audit(job, tasks=True), allow_nan=False)

    names = ("job.json", "status.json", "master.json", "events.jsonl", "history.jsonl")
    for name in (*names, "tasks.jsonl"):
        _never_worse_than_our_error(job.dir / name, read, _EACH)
