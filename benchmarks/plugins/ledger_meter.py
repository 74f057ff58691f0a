"""A ledger of tasks that measures its CPU, or that records nothing; see ``ledger.py`` beside this
folder."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from torch_edl.plugins.audit.ledger import TaskLedger
from torch_edl.plugins.audit.ledger_file import LedgerFile

_used_s = 0.0
_inside = threading.local()  # one method of the ledger calls another
_RECORDS = bool(os.environ["LEDGER_RECORDS"])


def _measured(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **more: Any) -> Any:
        global _used_s
        if getattr(_inside, "method", ""):
            return method(*args, **more)
        _inside.method, began = method.__name__, time.thread_time()
        try:
            return method(*args, **more)
        finally:
            _inside.method = ""
            _used_s += time.thread_time() - began

    return call


class _Nothing(TaskLedger):
    def done(self, worker: int, task: int, offset: int) -> None: ...
    def add(self, kind: str, *values: Any) -> None: ...
    def heard(self, heartbeat: Any) -> None: ...


class _Measured(TaskLedger):
    done = _measured(TaskLedger.done)
    add = _measured(TaskLedger.add)
    heard = _measured(TaskLedger.heard)
    close_line = _measured(TaskLedger.close_line)
    to_state = _measured(TaskLedger.to_state)


class File(LedgerFile):
    @_measured
    def write(self, state: Mapping[str, Any]) -> None:
        super().write(state)


Ledger = _Measured if _RECORDS else _Nothing


@atexit.register
def _tell() -> None:
    told = {"ledger_s": _used_s, "master_s": time.process_time()}
    Path(os.environ["LEDGER_METER"]).write_text(json.dumps(told))
