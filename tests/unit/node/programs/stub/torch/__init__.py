"""Takes the place of torch, and does at its import what the environment says."""

import os
import sys
import threading
from types import SimpleNamespace

imported_by = os.getpid()
default_generator = SimpleNamespace(seed=lambda: None)
if os.environ.get("PRINTS"):
    print("this release is the last one")
if os.environ.get("KEEPS_A_THREAD"):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if os.environ.get("TRACES"):
    sys.settrace(lambda *_: None)
