"""Preemption notices, which tell that a process will be taken away, and their thread."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from torch_edl.config.environment import ENV_NOTICE, ENV_PROCESS

log = logging.getLogger(__name__)

# Clouds give 30 s to 120 s, and recommend to look every 1 to 5 s.
_LOOK_S = 1.0


class Notice(Protocol):
    """A place that may hold a notice; the classes are in :mod:`torch_edl.processes.notices`."""

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
    """
    notice = os.environ.get(ENV_NOTICE, "") if notice is None else notice
    if not notice:
        return
    # Imported here: most jobs have no notices, and urllib takes 30 ms.
    from torch_edl.processes.notices.endpoint import EndpointNotice
    from torch_edl.processes.notices.file import FileNotice

    place = notice.replace("{name}", os.environ.get(ENV_PROCESS, ""))
    place = place.replace("{host}", socket.gethostname())
    looked_at: Notice = EndpointNotice(place) if "://" in place else FileNotice(place)
    threading.Thread(
        target=_watch, args=(place, looked_at, leave), name="preemption", daemon=True
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
