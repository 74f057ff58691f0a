"""Preemption notices by a file, which the script of a scheduler creates, for example."""

from __future__ import annotations

import os


class FileNotice:
    """Implements :class:`~torch_edl.processes.preemption.Notice` for a path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def look(self) -> str:
        try:
            os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return ""
        return f"{self._path} exists"
