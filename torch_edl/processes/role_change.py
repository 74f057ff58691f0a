"""Replace the program of this process, which keeps its pid and its log."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence

log = logging.getLogger(__name__)


def become(module: str, args: Sequence[str]) -> None:
    """Replace this process by ``python -m module *args``, whatever its threads are doing.

    The environment, the working directory and the parent-death signal stay the same. Children of
    ``multiprocessing`` are killed, and all connections are closed.
    """
    log.warning("this process becomes %s %s", module, " ".join(args))
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        for child in multiprocessing.active_children():
            child.kill()
    for number in os.listdir("/proc/self/fd"):
        # A library may have opened the file descriptor without close-on-exec.
        if int(number) > 2:
            with contextlib.suppress(OSError):
                os.set_inheritable(int(number), False)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *args])
