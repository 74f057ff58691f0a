"""For all tests: one thread each for torch, as workers on a shared machine have it."""

from __future__ import annotations

import os

# Before torch is imported. Threads of several processes on few cores wait for each other in spin
# loops: a test that takes a second alone takes minutes beside another.
os.environ["OMP_NUM_THREADS"] = "1"
