from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torch_edl.checkpoint import layout, tensor_files
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.checkpoint.tensor_files import OPTIMIZER_FILE
from torch_edl.cli.arguments import preflight
from torch_edl.cli.arguments.parser import parse
from torch_edl.config import CheckpointConfig, JobConfig
from torch_edl.errors import UsageError
from torch_edl.launch.jobs import master_host
from torch_edl.launch.jobs.folder import JobFolder

Check = Callable[..., JobConfig]


@pytest.fixture
def check(model_file: Path, csv_file: Path) -> Check:
    """Checks a run with the options given, and data unless told otherwise."""

    def run(*words: object, data: str = str(csv_file), summary: str = "") -> JobConfig:
        given = ["--data", data] if data else []
        given += ["--summary", summary] if summary else []
        return preflight.check(parse(["run", str(model_file), *given, *map(str, words)]), "train")

    return run


def refused(check: Check, *words: object, **more: str) -> str:
    with pytest.raises(UsageError) as caught:
        check(*words, **more)
    return str(caught.value)


def make_output(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "metadata.json").write_text(json.dumps({"format": 1}))


def make_checkpoint(
    root: Path, steps: int, strategy: str = "ps", header: Mapping[str, str] = {}
) -> Path:
    folder = layout.step_dir(root, steps)
    folder.mkdir(parents=True)
    found = {}
    if strategy != "ps":
        state = {"position": {}, "optimizers": [], "stateful": [], **header}
        about = {"state": json.dumps(state)}
        found[OPTIMIZER_FILE] = tensor_files.write(folder / OPTIMIZER_FILE, {}, about)
    manifest = Manifest(job="j", strategy=strategy, steps=steps, shards=1, files=found)
    layout.seal(folder, manifest)
    return folder


def test_globs_become_files(check: Check, tmp_path: Path, csv_file: Path) -> None:
    (tmp_path / "train2.csv").write_text("x,y\n1,2\n")
    config = check(data=str(tmp_path / "train*.csv"))
    assert config.data.train == (str(csv_file), str(tmp_path / "train2.csv"))


def test_missing_data(check: Check, tmp_path: Path, model_file: Path) -> None:
    assert refused(check, data="").startswith("--data: missing")
    assert refused(check, data="no.csv").startswith("--data no.csv: no such file")
    model_file.write_text(model_file.read_text() + "def eval_metrics_fn(): ...\n")
    assert refused(check, "--eval-data", "no*.csv").startswith("--eval-data no*.csv: no file")
    assert refused(check, "--format", "xml").startswith("--format xml: choose one of auto, rec")


def test_data_that_cannot_be_opened_here(check: Check, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("some words")
    message = refused(check, data=str(tmp_path / "notes"))
    assert message.startswith(f"--data {tmp_path}/notes: neither its suffix")
    assert message.endswith("name the format of all files by --format")
    assert check("--format", "jsonl", data=str(tmp_path / "notes")).data.format == "jsonl"
    database = f"sqlite:///{tmp_path}/no.db"
    message = refused(check, data=f"{database}#table=t&key=id")
    assert message.startswith(f"--data {database}: no such file")
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as made:
        made.execute("CREATE TABLE clicks (id INTEGER)")
    database = f"sqlite:///{tmp_path}/a.db"
    message = refused(check, data=f"{database}#table=click&key=id")
    assert message.startswith(f"--data {database}#table=click&key=id: ")
    assert message.endswith("no such table: click; tables: clicks")
    assert check(data=f"{database}#table=clicks&key=id").data.train
    message = refused(check, data="mysql+pymysql://h/d#table=t&key=id")
    assert message.endswith("run: pip install pymysql")


def test_a_source_of_the_users_needs_no_files(check: Check, model_file: Path) -> None:
    model_file.write_text(model_file.read_text() + "def data_source(paths): ...\n")
    assert check(data="").data.train == ()
    assert check(data="table://x").data.train == ("table://x",)


def test_output_must_be_free_empty_or_ours(check: Check, tmp_path: Path) -> None:
    check("--output", tmp_path / "a" / "b")
    (tmp_path / "empty").mkdir()
    check("--output", tmp_path / "empty")
    make_output(tmp_path / "ours")
    check("--output", tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").touch()
    assert "holds files that are no output" in refused(check, "--output", tmp_path / "theirs")
    (tmp_path / "file").touch()
    assert ": a file; name a folder" in refused(check, "--output", tmp_path / "file")
    assert f"{tmp_path}/file is a file" in refused(check, "--output", tmp_path / "file" / "x")


def test_a_place_where_not_even_root_can_write(check: Check) -> None:
    assert "/proc is not writable (" in refused(check, "--output", "/proc/mine")


@pytest.mark.parametrize("strategy", ["ps", "allreduce", "local"])
def test_a_job_that_resumes_has_the_strategy_of_its_checkpoint(
    check: Check, tmp_path: Path, strategy: str
) -> None:
    make_checkpoint(tmp_path / "ckpt", 10, strategy)
    words = ("--checkpoint-dir", tmp_path / "ckpt", "--resume")
    assert check(*words).train.strategy == strategy
    if strategy == "ps":
        assert "continue with --strategy ps" in refused(check, *words, "--strategy", "local")


def test_an_optimizer_of_another_framework_is_not_resumed(check: Check, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "ckpt", 10, "local", {"keras": "SGD"})
    message = refused(check, "--checkpoint-dir", tmp_path / "ckpt", "--resume")
    assert "an optimizer of TensorFlow, and " in message
    assert "is a model file of PyTorch; begin the data afresh with its values: --load" in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_is_not_writable(check: Check, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "is not writable" in refused(check, "--output", tmp_path / "locked" / "x")


def test_summary_is_a_file(check: Check, tmp_path: Path) -> None:
    check(summary=str(tmp_path / "new" / "s.json"))
    assert ": a folder; name a file" in refused(check, summary=str(tmp_path))


def test_checkpoints_of_an_earlier_job_are_not_mixed_with_new_ones(
    check: Check, tmp_path: Path
) -> None:
    folder = tmp_path / "ckpt"
    check("--checkpoint-dir", folder)
    check("--checkpoint-dir", folder, "--resume")
    make_checkpoint(folder, 40)
    message = refused(check, "--checkpoint-dir", folder)
    assert "holds step-0000000040 of an earlier job; add --resume" in message
    check("--checkpoint-dir", folder, "--resume")


def test_what_a_trained_model_is(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_output(tmp_path / "out")
    make_checkpoint(tmp_path / "ckpt", 10)
    newest = make_checkpoint(tmp_path / "ckpt", 20)
    layout.step_dir(tmp_path / "ckpt", 30).mkdir()  # left by a crash
    for given, found in [("out", tmp_path / "out"), ("ckpt", newest), (newest, newest)]:
        assert check("--load", tmp_path / given).checkpoint.load == str(found)
    kept = JobConfig(name="kept", model_file="m", checkpoint=CheckpointConfig(dir=str(newest)))
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    folder = JobFolder("kept")
    folder.dir.mkdir(parents=True)
    folder.config_file.write_text(kept.to_json())
    assert check("--load", "kept").checkpoint.load == str(newest)
    monkeypatch.chdir(tmp_path)
    assert check("--load", "out").checkpoint.load == str(tmp_path / "out")
    (tmp_path / "other").mkdir()
    assert "other: no trained model there" in refused(check, "--load", tmp_path / "other")
    assert "none: no such folder" in refused(check, "--load", tmp_path / "none")
    resume = ("--checkpoint-dir", tmp_path / "ckpt", "--resume", "--load", tmp_path / "out")
    assert refused(check, *resume).startswith("--load and --resume")


def test_the_state_of_an_optimizer_comes_with_its_strategy(check: Check, tmp_path: Path) -> None:
    servers = make_checkpoint(tmp_path / "servers", 10)
    alone = make_checkpoint(tmp_path / "alone", 10, "local")
    make_output(tmp_path / "out")
    words = ("--load-optimizer", "--load")
    assert check(*words, servers).train.strategy == "ps"
    assert check(*words, tmp_path / "alone").train.strategy == "local"
    assert check(*words, alone, "--workers", 2).train.strategy == "allreduce"
    assert "an output, which has no state" in refused(check, *words, tmp_path / "out")
    said = refused(check, *words, servers, "--strategy", "allreduce")
    assert "of the strategy ps, which keeps" in said
    assert "another form than ps" in refused(check, *words, alone, "--ps", 2)
    assert "add --load" in refused(check, "--load-optimizer")


def test_a_damaged_checkpoint_is_refused(check: Check, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "ckpt", 10)
    manifest = layout.read(folder)
    listed = dataclasses.replace(manifest, files={"shard-0.safetensors": 7})
    (folder / "manifest.json").write_text(listed.to_json())
    assert "shard-0.safetensors: None bytes" in refused(check, "--load", tmp_path / "ckpt")


def test_evaluate_names_its_own_options(tmp_path: Path, model_file: Path) -> None:
    model_file.write_text(model_file.read_text() + "def eval_metrics_fn(): ...\n")
    words = ["evaluate", str(model_file), "--from", str(tmp_path), "--data", "no.csv"]
    with pytest.raises(UsageError, match=r"^--data no\.csv: no such file"):
        preflight.check(parse(words), "evaluate")
    (tmp_path / "test.csv").write_text("x,y\n1,2\n")
    words[-1] = str(tmp_path / "test.csv")
    with pytest.raises(UsageError, match=r"^--from .*: no trained model there"):
        preflight.check(parse(words), "evaluate")
    words[3] = ""  # a model that was never trained would be evaluated
    with pytest.raises(UsageError, match=r"^--from '': names nothing"):
        preflight.check(parse(words), "evaluate")


def test_output_file(tmp_path: Path) -> None:
    preflight.check_output_file(str(tmp_path / "x.csv"), (".csv",))
    with pytest.raises(UsageError, match=r"x\.txt: the name must end in \.csv or \.npz"):
        preflight.check_output_file("x.txt", (".csv", ".npz"))


STRONG = "gUpkdyrVcs3PqIqzPDXSqjLhIjUZeLm3VMPn2kMWbGs"
HERE = ["--rdzv-endpoint", "127.0.0.1:29400"]


@pytest.mark.parametrize(
    ("words", "workers", "slots"),
    [
        (["--nnodes", "2:4", "--nproc-per-node", "2"], (4, 8), 2),
        (["--nnodes", "3"], (3, 3), 1),
        (["--nnodes", "1:3", "--workers", "2:8"], (2, 8), 3),
        (["--nnodes", "1:3", "--workers", "2:8", "--nproc-per-node", "4"], (2, 8), 4),
        (["--nproc-per-node", "3"], (3, 3), 3),
    ],
)
def test_workers_of_several_machines(
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    workers: tuple[int, int],
    slots: int,
) -> None:
    monkeypatch.setenv("TORCH_EDL_TOKEN", STRONG)
    cluster = check(*words, *HERE).cluster
    assert ((cluster.min_workers, cluster.max_workers), cluster.slots) == (workers, slots)


def test_what_several_machines_cannot_do(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "set TORCH_EDL_TOKEN to one secret" in refused(check, "--nnodes", 2, *HERE)
    monkeypatch.setenv("TORCH_EDL_TOKEN", "short")
    assert "TORCH_EDL_TOKEN: 5 characters" in refused(check, "--nnodes", 2, *HERE)
    monkeypatch.setenv("TORCH_EDL_TOKEN", STRONG)
    for words, message in (
        (["--nnodes", "2"], "--nnodes 2: add --rdzv-endpoint HOST:PORT"),
        (["--nnodes", "3:2", *HERE], "--nnodes 3:2: the minimum is above the maximum; write 2:3"),
        (["--nnodes", "2", "--rdzv-endpoint", "node0"], "node0: not an endpoint"),
        (
            ["--nnodes", "2", "--workers", "9", "--nproc-per-node", "4", *HERE],
            "--workers 9: 2 machines (--nnodes) of 4 workers (--nproc-per-node) have only 8",
        ),
        (
            ["--nnodes", "2", "--durability", "journal", "--ps", "2", *HERE],
            "--durability journal: the journal of a server would be lost with its machine",
        ),
        (
            ["--nnodes", "2", "--detach", "--rdzv-endpoint", "203.0.113.1:29400"],
            "--detach: the master is on another machine",
        ),
    ):
        assert message in refused(check, *words), words


def test_a_name_of_this_machine_that_others_do_not_reach(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EDL_TOKEN", STRONG)
    monkeypatch.setattr(master_host, "is_loopback_name", lambda endpoint: "node0" in endpoint)
    monkeypatch.setattr(preflight, "is_local", lambda endpoint: True)
    message = refused(check, "--nnodes", 2, "--rdzv-endpoint", "node0:29400")
    assert "node0 is a loopback address on this machine" in message


def test_the_experiment_of_all_machines(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EDL_TOKEN", STRONG)
    one, other = (check("--nnodes", 2, *HERE).experiment for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.difference(other) == ""
