from __future__ import annotations

import dataclasses
import io
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from torch_edl.cli import summary
from torch_edl.config import CheckpointConfig, JobConfig
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.wire import master_pb2 as pb

CONFIG = JobConfig(
    name="net-abc", model_file="/m/net.py", checkpoint=CheckpointConfig(output="/out/trained")
)
KEYS = (
    "job kind strategy reason state records tasks steps wall_s samples_per_s loss metrics "
    "evaluations best processes damaged nan_steps updates_lost records_early error checkpoint "
    "output"
)

Make = Callable[..., pb.GetStatusResponse]


@pytest.fixture
def finished(make_status: Make) -> JobOutcome:
    """A job that did all it should."""
    status = make_status(state="finished", wall_s=20.0, records={"done": 30_000})
    status.evaluations.add(steps=100, metrics={"auc": 0.5})
    status.evaluations.add(steps=469, metrics={"auc": 0.75, "loss": float("nan")})
    return JobOutcome(
        state="finished", status=status, master_pid=77, master_exit="exit code 0", logs="/logs"
    )


def conclude(outcome: JobOutcome, config: JobConfig = CONFIG) -> tuple[int, str]:
    output = io.StringIO()
    code = summary.finish(config, outcome, Console(file=output, width=80))
    return code, output.getvalue()


def test_summary_of_a_finished_job(finished: JobOutcome) -> None:
    built = summary.build(CONFIG, finished)
    assert " ".join(built) == KEYS
    assert built["records"] == 30_000
    assert built["samples_per_s"] == 1500.0
    assert built["metrics"] == {"auc": 0.75, "loss": None}
    assert [e["steps"] for e in built["evaluations"]] == [100, 469]
    assert built["output"] == "/out/trained"
    assert built["processes"][0] == {"role": "master", "id": 0, "pid": 77, "exit": "exit code 0"}
    assert built["processes"][2] == {"role": "worker", "id": 0, "pid": 12, "exit": "signal 9"}
    assert len(built["processes"]) == 5


def test_a_script_that_left_its_loops_says_so_in_its_last_line(make_status: Make) -> None:
    status = make_status(state="finished", records_early=1600, wall_s=2.0, records={"done": 2400})
    config = dataclasses.replace(CONFIG, kind="script", checkpoint=CheckpointConfig())
    outcome = JobOutcome(state="finished", status=status, logs="/logs")
    code, text = conclude(outcome, config)
    assert code == 0
    assert "records/s; ended early: 1,600 records not trained\n" in text


@pytest.mark.parametrize("status", [True, False])
def test_every_key_is_there_when_it_failed(finished: JobOutcome, status: bool) -> None:
    failed = dataclasses.replace(finished, state="failed", error="no", usage_error=True)
    failed = failed if status else dataclasses.replace(failed, status=None)
    built = summary.build(CONFIG, failed)
    assert " ".join(built) == KEYS
    assert (built["state"], built["error"], built["output"]) == ("failed", "no", "")
    assert built["processes"][0]["pid"] == 77


def test_the_file_is_json_and_replaced_whole(finished: JobOutcome, tmp_path: Path) -> None:
    file = tmp_path / "new" / "s.json"
    console = Console(file=io.StringIO(), width=80)
    for _ in range(2):
        summary.finish(CONFIG, finished, console, file=str(file))
    assert json.loads(file.read_text())["job"] == "net-abc"
    assert [p.name for p in file.parent.iterdir()] == ["s.json"]
    for _ in range(2):
        summary.forget(str(file))
    assert not file.exists()


def test_a_summary_that_cannot_be_written_does_not_hide_the_end(
    finished: JobOutcome, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    output = io.StringIO()
    with pytest.raises(OSError, match="file"):
        summary.finish(CONFIG, finished, Console(file=output), file=str(tmp_path / "file/s.json"))
    assert "trained on 30,000 records" in output.getvalue()


def test_closing_words(finished: JobOutcome) -> None:
    code, text = conclude(finished)
    assert code == 0
    assert text.splitlines() == [
        "net-abc: trained on 30,000 records in 193 steps, 0:20, 1,500 records/s",
        "training loss: 0.3457",
        "metrics: auc 0.7500, loss nan",
        "output: /out/trained",
    ]


def test_without_an_evaluation_the_loss_of_training_is_told(
    finished: JobOutcome, make_status: Make
) -> None:
    status = make_status(state="finished", wall_s=20.0, records={"done": 30_000})
    _, text = conclude(dataclasses.replace(finished, status=status))
    assert "training loss: 0.3457" in text.splitlines()
    assert summary.build(CONFIG, dataclasses.replace(finished, status=status))["loss"] == 0.34567


@pytest.mark.parametrize(
    ("usage_error", "code", "logs"), [(False, 1, "logs: /logs\n"), (True, 2, "")]
)
def test_a_failure_is_one_line_with_what_the_user_did_above(
    finished: JobOutcome,
    capsys: pytest.CaptureFixture[str],
    usage_error: bool,
    code: int,
    logs: str,
) -> None:
    trace = 'Traceback\n  File "net.py", line 3\nValueError: [b]oom[/b]\n'
    failed = dataclasses.replace(
        finished, state="failed", error="net.py: a; b", traceback=trace, usage_error=usage_error
    )
    assert conclude(failed)[0] == code
    assert capsys.readouterr().err == f"{trace}error: net.py: a; b\n{logs}"


@pytest.mark.parametrize("resume", [True, False])
def test_a_resume_that_was_refused_is_not_advised_again(
    finished: JobOutcome, make_status: Make, resume: bool
) -> None:
    status = make_status(state="failed", checkpoint="/ckpt/step-9")
    failed = dataclasses.replace(
        finished, state="failed", status=status, error="--resume /ckpt/step-9: no", usage_error=True
    )
    config = dataclasses.replace(CONFIG, checkpoint=CheckpointConfig(dir="/ckpt", resume=resume))
    code, text = conclude(failed, config)
    assert (code, "continue with --resume" in text) == (2, not resume)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (0, 1)])
def test_a_stopped_job_says_what_is_kept(
    finished: JobOutcome, make_status: Make, number: int, code: int
) -> None:
    status = make_status(state="stopped", checkpoint="/ckpt/step-9")
    outcome = dataclasses.replace(finished, state="stopped", status=status, signal=number)
    got, text = conclude(outcome)
    assert got == code
    assert text == (
        "net-abc: stopped after 12,345 of 30,000 records; newest checkpoint: /ckpt/step-9 "
        "(continue with --resume)\n"
    )


def test_a_job_that_finished_in_spite_of_ctrl_c_is_a_success(finished: JobOutcome) -> None:
    assert dataclasses.replace(finished, signal=signal.SIGINT).exit_code == 0
