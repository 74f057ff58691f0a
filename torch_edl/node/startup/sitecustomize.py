"""Makes a process of a script a fork server; see :func:`torch_edl.node.fork_server.hold`.

Python imports this module once the interpreter is ready, before the script begins.
"""

from __future__ import annotations

import importlib
import os
import sys

_BUILT_IN = frozenset(sys.modules)

try:
    from torch_edl.node import fork_server

    fork_server.hold(os.path.dirname(__file__), _BUILT_IN)
except BaseException:
    # The script must not run in the fork server.
    os._exit(1)

# This is a forked process from here on: the module of that name that the environment may have takes
# the place of this one. If there is none, Python ignores the ImportError, as always.
del sys.modules["sitecustomize"]
importlib.import_module("sitecustomize")
