"""``torch-edl dashboard``: the command line, and the page as one file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.job_folder import SimulatedJob, log_of
from torch_edl.cli.__main__ import main
from torch_edl.events import JobFailed

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def job() -> SimulatedJob:
    job = SimulatedJob("digits", deaths=1, seconds=60)
    job.append(job.event(61, JobFailed(error=NASTY, traceback=f"Traceback\n{NASTY}")))
    job.processes[3]["log"] = str(log_of(job.folder.logs, "worker-0", f"{NASTY}\n"))
    job.write_status(state="failed", error=NASTY, wall_s=58.0, steps=600)
    return job


def test_one_file_that_loads_nothing(job: SimulatedJob, tmp_path: Path) -> None:
    file = tmp_path / "new" / "digits.html"
    assert main(["dashboard", "digits", "--export", str(file)]) == 0
    text = file.read_text()
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text.replace(json.dumps(NASTY), ""))
    assert "<script>alert" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    found = json.loads(data)
    assert found["events"][-1]["text"] == NASTY
    assert found["logs"]["worker-0"][0] == NASTY
    assert found["deaths"] == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["other"], "other: no such job; the newest is digits"),
        (["digits", "--port", "70000"], "--port 70000: must be 0 to 65535"),
        (["digits", "--port", "8000", "--export", "a.html"], "a file needs no port"),
        (["digits", "--export", "a.pdf"], "--export a.pdf: write FILE.html"),
        (["digits", "--export", "/proc/a.html"], "--export /proc/a.html"),
    ],
)
def test_what_cannot_work(
    job: SimulatedJob, words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboard", *words]) == 2
    assert problem in capsys.readouterr().err
