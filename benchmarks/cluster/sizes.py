"""How much memory objects take."""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

# Shared by all: not what one object needs.
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def bytes_of(root: Any) -> int:
    """Bytes of an object and of all that is reachable from it, but for classes and functions.

    Messages of protobuf count with their size on the wire on top of that of the object.
    """
    seen: set[int] = set()
    stack, total = [root], 0
    while stack:
        each = stack.pop()
        if id(each) in seen or isinstance(each, _SHARED):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        if hasattr(each, "ByteSize"):
            total += each.ByteSize()
        stack.extend(gc.get_referents(each))
    return total
