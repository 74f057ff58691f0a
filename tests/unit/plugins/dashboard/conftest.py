from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.plugins.dashboard.server import PageServer
from torch_edl.plugins.dashboard.view import View

Serve = Callable[[str], PageServer]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of jobs of the test's own."""
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves the page of a job of that name until the end of the test."""
    with ExitStack() as stack:

        def start(name: str) -> PageServer:
            server = stack.enter_context(PageServer(View(LocalJob(name))))
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server

        yield start
