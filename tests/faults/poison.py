"""A record that ends the process which reads or computes it.

The last arguments: the record, the kind of the poison, and where (``feed``, ``forward``,
``dataset``).
"""

import ctypes
import os
import signal
import sys

WHERE, KIND, RECORD = sys.argv.pop(), sys.argv.pop(), int(sys.argv.pop())


class Interrupted(BaseException):
    """Like asyncio.CancelledError, or a panic of a Rust extension: no Exception."""


def swallow(numbers, where):
    if where != WHERE or RECORD not in numbers:
        return
    match KIND:
        case "memory":  # what the kernel does when memory is short
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(0)
        case "exception":
            raise ValueError(f"{RECORD} is poison")
        case "base":
            raise Interrupted(RECORD)
