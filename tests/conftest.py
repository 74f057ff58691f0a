"""For all tests: one thread each for torch, as workers on a shared machine have it, signals, no
deadlines of hypothesis, and a real etcd."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import warm
from tests.etcd_server import Etcd

# Before torch is imported. Threads of several processes on few cores wait for each other in spin
# loops: a test that takes a second alone takes minutes beside another.
os.environ["OMP_NUM_THREADS"] = "1"

# On a busy machine, any example may take longer than hypothesis allows by default, 200 ms.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

# A shell without job control has what it starts with `&` ignore SIGINT, and nohup SIGHUP; and so
# would all that is started here: a job that is to end by Ctrl-C or with its terminal would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Imports and collected tests make no garbage, and the collector would visit all their objects many
# times, also while tests run.
gc.disable()
# To free them at the end takes seconds. Libraries complain of objects that are left then.
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(os._exit, 0)
else:
    atexit.register(gc.unfreeze)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let the garbage collector run again, without the objects of the collection."""
    try:
        return (yield)
    finally:
        if "torch" in sys.modules:
            from torch_edl.pytorch.torch_internals import defer_compiler

            defer_compiler()  # as a worker does
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Programs of torch-edl are forked. A storm executes them, as users do."""
    marks = {mark.name for mark in item.iter_markers()}
    with contextlib.nullcontext() if marks & {"slow", "executed"} else warm.programs():
        return (yield)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of this test alone, which may hurt it."""
    server = Etcd(tmp_path)
    yield server
    server.kill()
