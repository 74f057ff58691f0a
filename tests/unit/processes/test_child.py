"""follow_parent where the parent is gone already, or was never named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def run(env: dict[str, str]) -> int:
    source = "from torch_edl.processes.child import follow_parent; follow_parent(); print('lives')"
    return subprocess.run(
        [sys.executable, "-c", source], env={**os.environ, **env}, timeout=20
    ).returncode


def test_nothing_happens_when_nobody_launched_us():
    assert run({"TORCH_EDL_PARENT_PID": ""}) == 0


def test_the_right_parent_lets_us_live():
    assert run({"TORCH_EDL_PARENT_PID": str(os.getpid())}) == 0


def test_a_parent_that_died_before_we_asked_ends_us():
    assert run({"TORCH_EDL_PARENT_PID": "1" if os.getpid() != 1 else "2"}) == -signal.SIGKILL
