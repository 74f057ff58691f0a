"""Servers that tests need, from packages of Debian."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

_POLICY = Path("/usr/sbin/policy-rc.d")


def require_package(package: str, is_installed: Callable[[], bool]) -> None:
    """Installs a package in CI if it is missing; elsewhere skips the test."""
    if is_installed():
        return
    words = ["apt-get", "install", "-y", "--no-install-recommends", package]
    if not os.environ.get("CI"):
        pytest.skip(f"{package} is not installed: {' '.join(words)}")
    # Several processes run tests.
    with open(Path(tempfile.gettempdir()) / f"torch-edl-{package}-install", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_installed():
            _install(words)


def _install(words: list[str]) -> None:
    ours = not _POLICY.exists()
    if ours:  # Debian's service is not to start
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [*words, "-o", "DPkg::Lock::Timeout=60"]
    try:
        if subprocess.run(install, env=env, capture_output=True).returncode:
            subprocess.run(["apt-get", "update"], env=env, check=True)
            subprocess.run(install, env=env, check=True)
    finally:
        if ours:
            _POLICY.unlink()
