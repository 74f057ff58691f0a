"""Preemption notices, which tell that a process will be taken away, and their thread."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from torch_edl.config import extensions
from torch_edl.config.environment import ENV_NOTICE, ENV_PROCESS

log = logging.getLogger(__name__)

# Clouds give 30 s to 120 s, and recommend to look every 1 to 5 s.
_LOOK_S = 1.0


class Notice(Protocol):
    """A place that may hold a notice; entry points of ``torch_edl.notices`` name the classes."""

    def look(self) -> str:
        """Return the text of the notice; empty if there is none.

        Raises:
            OSError: the place cannot be read now.
        """


def watch(leave: Callable[[str], None], notice: str | None = None) -> None:
    """Watch for a notice in a thread, and call ``leave`` with its text once.

    Args:
        notice: value of ``--preemption-notice``, in which ``{name}`` stands for the name of the
            process and ``{host}`` for that of the machine. Empty: there are no notices. None: the
            value is taken from the environment.

    Raises:
        UsageError: no installed package knows the scheme of the URL.
    """
    notice = os.environ.get(ENV_NOTICE, "") if notice is None else notice
    if not notice:
        return
    place = notice.replace("{name}", os.environ.get(ENV_PROCESS, ""))
    place = place.replace("{host}", socket.gethostname())
    scheme = place.partition("://")[0] if "://" in place else "file"
    kind = extensions.load(extensions.NOTICES, scheme, f"--preemption-notice {notice}")
    threading.Thread(
        target=_watch, args=(place, kind(place), leave), name="preemption", daemon=True
    ).start()


def _watch(place: str, notice: Notice, leave: Callable[[str], None]) -> None:
    warned = False
    while True:
        try:
            if text := notice.look():
                break
        except OSError as error:
            if not warned:
                log.warning("%s: %s; until it works again, notices are missed", place, error)
            warned = True
        time.sleep(_LOOK_S)
    log.warning("notice of preemption: %s", text)
    leave(text)
