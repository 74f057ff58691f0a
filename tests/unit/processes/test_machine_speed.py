"""The speed of this machine."""

from __future__ import annotations

import time

from torch_edl.processes.machine_speed import measure


def test_this_machine_computes_and_copies() -> None:
    began = time.monotonic()
    speed = measure(0.05)
    assert time.monotonic() - began >= 0.1
    # A 16 MHz machine of 1985 copied 1 MB a second.
    assert speed.flops > 1e6
    assert speed.copied > 1e6
