"""A program for a fork server, which does what its first argument says."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np


def preload(*args: str) -> None:
    os.environ["PRELOADED"] = " ".join(args)
    if os.environ.get("KEEPS_A_THREAD"):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if os.environ.get("CANNOT_IMPORT"):
        raise ImportError("no such framework")


def run() -> None:
    what = sys.argv[1]
    if what == "tell":
        draws = [random.random(), float(np.random.random())]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        told = {
            "args": sys.argv[2:],
            "preloaded": os.environ.get("PRELOADED"),
            "name": os.environ["TORCH_EDL_PROCESS"],
            "main": sys.modules["__main__"].__name__,
            "leads": os.getsid(0) == os.getpid(),
            "parent": os.getppid(),
            "stdin": sys.stdin.read(),
            "draws": draws,
            "blocked": len(mask),
            "command": Path("/proc/self/cmdline").read_bytes().decode().rstrip("\0").split("\0"),
            "environment": Path("/proc/self/environ").read_bytes().decode().split("\0"),
            "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        }
        print(json.dumps(told), flush=True)
        sys.exit(7)
    if what == "fork":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        print(child.pid, flush=True)
    signal.pause()
