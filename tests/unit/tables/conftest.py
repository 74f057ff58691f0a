"""The two places of a table's rows: memory and a disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.disk_folder import local_disk
from tests.unit.tables import core_tables


@pytest.fixture(scope="module", params=["memory", "disk"])
def storage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Runs all tests of a module with rows in memory, and again with rows on a disk."""
    if request.param == "disk":
        core_tables.place["folder"] = str(local_disk(tmp_path_factory.mktemp("rows")))
    yield
    core_tables.place.clear()
