"""A process becomes another module: the same pid, the same log, nothing else of what it was."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence

log = logging.getLogger(__name__)


def become(module: str, args: Sequence[str]) -> None:
    """Replaces this process, whatever its threads are doing, by ``python -m module *args``.

    The environment, the working folder and the signal that ends the process with its parent stay.
    Processes that it forked are ended, and its connections close.
    """
    log.warning("this process becomes %s %s", module, " ".join(args))
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        for child in multiprocessing.active_children():
            child.kill()
    for number in os.listdir("/proc/self/fd"):
        # A library may have opened it without close-on-exec.
        if int(number) > 2:
            with contextlib.suppress(OSError):
                os.set_inheritable(int(number), False)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *args])
