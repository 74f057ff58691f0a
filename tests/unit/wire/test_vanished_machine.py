"""Connections to a machine that vanishes without closing them, and to its successor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.cluster.conftest import require_networks
from tests.waiting import HANG_S

ROOT = Path(__file__).parents[3]
PROGRAM = "tests.unit.wire.programs.vanishing_machine"


def test_connections_to_a_machine_that_vanishes_end_and_its_successor_is_found() -> None:
    require_networks()
    ended = subprocess.run(
        [sys.executable, "-m", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * HANG_S,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    # A worker that was silent for 30 s is declared dead; the calls themselves give up after 60 s.
    address, seconds = found["busy"]
    assert address == found["successor"]
    assert seconds < 30
    address, _ = found["idle"]
    assert address == found["successor"]
    assert found["data"][0] == "UNAVAILABLE"
    assert found["stream"][0] == "ConnectionResetError"
