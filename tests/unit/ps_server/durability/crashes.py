"""Crashes of a process at any of its changes of the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Crash(BaseException):
    """The process comes no further."""


@contextmanager
def crash_after(calls: int) -> Iterator[None]:
    """After a number of changes and syncs of a folder, each further one raises :class:`Crash`."""
    left = calls

    def crashing(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash
            return call(*args, **more)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        # Before the calls that it makes: it would count as one.
        patch.setattr(shutil, "rmtree", crashing(shutil.rmtree))
        for name in ("rename", "mkdir", "unlink", "rmdir", "fdatasync", "fsync"):
            patch.setattr(os, name, crashing(getattr(os, name)))
        yield
