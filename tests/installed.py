"""Packages that a test installs."""

from __future__ import annotations

from pathlib import Path


def install(folder: Path, name: str, entry_points: str) -> None:
    """Write what makes a package of that name installed in a folder, with its entry points."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(entry_points)
