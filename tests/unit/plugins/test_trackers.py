"""Runs of jobs in the local store of MLflow, and in the offline folder of Weights & Biases."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from torch_edl.config import JobConfig
from torch_edl.config.parts import CheckpointConfig
from torch_edl.errors import UsageError
from torch_edl.events import JobFinished
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.launch.jobs.observers import Observers
from torch_edl.plugins.trackers.mlflow import MLflow
from torch_edl.plugins.trackers.process import TrackerError
from torch_edl.plugins.trackers.tracker import Tracker, settings
from torch_edl.plugins.trackers.wandb import WeightsAndBiases
from torch_edl.wire import master_pb2 as pb

_HEAD, _BLOCK = struct.Struct("<IHB"), 32 << 10
_FULL, _LAST = 1, 4
EVENT = 1.0, JobFinished()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobConfig:
    for name in ("TORCH_EDL_HOME", "WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home"))
    output = tmp_path / "model"
    output.mkdir()
    (output / "weights").write_text("w")
    (tmp_path / "checkpoints").mkdir()
    JobFolder("digits").dir.mkdir(parents=True)
    return JobConfig(
        name="digits",
        model_file="/m.py",
        checkpoint=CheckpointConfig(output=str(output), dir=str(tmp_path / "checkpoints")),
    )


def follow(tracker: Tracker, job: JobConfig, first: int, state: str) -> None:
    """Pass a tracker two steps, and the evaluation of the first one."""
    tracker.begin(job)
    tracker.event(*EVENT)
    tracker.scalars(first, 100.0, {"train/loss": 0.5})
    tracker.scalars(first + 1, 101.0, {"train/loss": 0.25})
    tracker.scalars(first, 102.0, {"eval/hits@10": 0.75})
    tracker.end(state, "")


def resumed(job: JobConfig) -> JobConfig:
    """Return a job with another name and folder that resumes from the checkpoints of a job."""
    return replace(job, name="again", checkpoint=replace(job.checkpoint, resume=True))


def offline_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file of W&B: blocks of 32 KiB, as in LevelDB's log, after a head of 7
    bytes."""
    at, whole = 7, b""
    while at + _HEAD.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD.size:
            at += left
            continue
        _, size, kind = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        whole += data[at : at + size]
        at += size
        if kind in (_FULL, _LAST):
            yield whole
            whole = b""


def test_passwords_in_urls_are_left_out(job: JobConfig) -> None:
    secret = replace(job, model_args=("postgresql://me:secret@db/clicks",))
    found = settings(secret)
    assert found["model_args"] == '["postgresql://***@db/clicks"]'
    assert {"versions.python", "versions.torch", "versions.torch-edl"} <= set(found)


def test_a_resumed_job_goes_on_with_its_run_of_mlflow(job: JobConfig, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = MLflow.check(str(tmp_path))
    follow(MLflow(uri), job, 1, "failed")
    follow(MLflow(uri), resumed(job), 3, "finished")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("torch-edl")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("digits", "FINISHED")
    assert run.data.params["model_file"] == "/m.py"
    assert run.data.params["versions.torch"]
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    steps = sorted((each.step, each.timestamp, each.value) for each in losses)
    assert steps == [(1, 100_000, 0.5), (2, 101_000, 0.25), (3, 100_000, 0.5), (4, 101_000, 0.25)]
    assert run.data.metrics["eval/hits_10"] == 0.75
    (model,) = tmp_path.glob("mlartifacts/*/artifacts/model/weights")
    assert model.read_text() == "w"


def test_a_continued_job_goes_on_with_its_run_of_wandb(
    job: JobConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    follow(WeightsAndBiases("clicks"), job, 1, "failed")
    follow(WeightsAndBiases("clicks"), job, 3, "finished")
    runs, settings, rows, artifacts = set(), set(), [], []
    for file in sorted(tmp_path.glob("home/wandb/offline-run-*/run-*.wandb")):
        for data in offline_records(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run"):
                runs.add((record.run.run_id, record.run.project, record.run.display_name))
                settings |= {each.key for each in record.run.config.update}
            if record.HasField("history"):
                rows.append({i.key or i.nested_key[0]: i.value_json for i in record.history.item})
            if record.HasField("artifact"):
                artifacts.append((record.artifact.name, record.artifact.type))
    ((_, project, name),) = runs
    assert (project, name) == ("clicks", "digits")
    assert {"model_file", "versions.torch"} <= settings
    assert [(row["step"], row.get("train/loss", row.get("eval/hits@10"))) for row in rows] == [
        ("1", "0.5"), ("2", "0.25"), ("1", "0.75"), ("3", "0.5"), ("4", "0.25"), ("3", "0.75"),
    ]  # fmt: skip
    assert artifacts == [("digits-model", "model")]


def test_a_job_does_not_wait_for_a_server_that_does_not_answer(
    job: JobConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "600")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(Tracker, "END_S", 0.1)
    server = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with Observers(replace(job, observe=(f"mlflow={url}",))) as watched:
        for step in (1, 2):
            watched.update(pb.GetStatusResponse(state="running", steps=step))
        (thread,) = [each for each in threading.enumerate() if each.name == "observer mlflow"]
        watched.end("finished")
        assert thread.is_alive()  # the tracker still waits for an answer
    (warning,) = caplog.messages
    assert warning.startswith("--observe mlflow: the observer did not end within")
    server.close()  # which resets the connection
    thread.join()


def test_a_run_of_wandb_without_a_key_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    keys = tmp_path / "keys"
    monkeypatch.setenv("NETRC", str(keys))
    with pytest.raises(UsageError, match=r"wandb=clicks: no API key: run wandb login, set WANDB_"):
        WeightsAndBiases.check("clicks")
    keys.write_text("machine api.wandb.ai login user password 0123")
    keys.chmod(0o600)
    assert WeightsAndBiases.check("clicks") == "clicks"
    keys.unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert WeightsAndBiases.check("clicks") == "clicks"


def test_a_server_that_is_away_is_a_warning(
    job: JobConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    with Observers(replace(job, observe=("wandb=clicks",))) as watched:
        for step in (1, 2):
            watched.update(pb.GetStatusResponse(state="running", steps=step))
    (warning,) = caplog.messages
    assert warning.startswith("--observe wandb: TrackerError: CommError: ")
    assert "/graphql" in warning


def test_a_killed_process_of_a_tracker_is_an_error(job: JobConfig) -> None:
    tracker = MLflow(MLflow.check("http://127.0.0.1:1"))
    tracker.begin(job)
    tracker._run._process.kill()
    with pytest.raises(TrackerError, match=r"ended \(SIGKILL\)"):
        tracker.event(*EVENT)
    tracker.end("finished", "")


def test_a_folder_or_file_of_mlflow_becomes_an_absolute_uri(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert MLflow.check("runs") == f"sqlite:///{tmp_path}/runs/mlflow.db"
    assert MLflow.check("sqlite:///my.db") == f"sqlite:///{tmp_path}/my.db"
    assert MLflow.check("https://tracking:5000") == "https://tracking:5000"
    with pytest.raises(UsageError, match=r"^--observe mlflow=file:///runs: .*write mlflow=FOLDER"):
        MLflow.check("file:///runs")


def test_a_password_is_not_stored_in_the_job() -> None:
    with pytest.raises(UsageError, match=r"mlflow=https://me:\*\*\*@host: the job would store"):
        MLflow.check("https://me:secret@host")


@pytest.mark.parametrize("kind", [MLflow, WeightsAndBiases])
def test_a_tracker_needs_a_value(kind: type[Tracker]) -> None:
    with pytest.raises(
        UsageError, match=rf"^--observe {kind.NAME}: the (store|project) is missing"
    ):
        kind.check("")
