"""A folder for the rows of tables that are on a disk."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def local_disk(folder: Path) -> Path:
    """Return the folder of a test, if it is on a disk and not in memory.

    A user's test skips otherwise; with CI set, it fails.
    """
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", folder], check=True, capture_output=True, text=True
    ).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        reason = f"{folder} is a {kind}: set TMPDIR to a folder on a disk"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return folder
