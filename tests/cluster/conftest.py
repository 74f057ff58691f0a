"""A machine for clusters."""

from __future__ import annotations

import os

import pytest

from tests.cluster.network import why_not


@pytest.fixture(scope="session")
def machine() -> None:
    """A machine that can have a cluster; in CI it must."""
    require_networks()


def require_networks() -> None:
    """Skips the test on a machine that cannot have a cluster; in CI it must."""
    if reason := why_not():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
