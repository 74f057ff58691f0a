"""A journal of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.ps_server.durability import journals


@pytest.fixture
def server(tmp_path: Path) -> Iterator[journals.Server]:
    """Opens a journal that is not there yet, in this process."""
    opened = journals.Server(tmp_path / "journal")
    yield opened
    opened.close()
