"""The log of a container: a file whose lines begin with their time."""

from __future__ import annotations

import asyncio
import datetime
import os
from pathlib import Path

_LAST_LINES, _LAST_BYTES = 80, 2048


async def copy_log(output: asyncio.StreamReader | None, path: Path) -> None:
    """Until every process of the container has ended; each line with its time."""
    assert output is not None
    with open(path, "ab", buffering=0) as log:
        while True:
            try:
                line = await output.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                line = error.partial and error.partial + b"\n"
            except asyncio.LimitOverrunError as error:
                line = await output.read(error.consumed) + b"\n"
            if not line:
                return
            stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            log.write(stamp.encode() + b" " + line)


def last_lines(log: Path) -> str:
    """As they are in the status of a container that has failed."""
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * _LAST_BYTES))
        lines = file.read().splitlines(keepends=True)[-_LAST_LINES:]
    text = b"".join(line.partition(b" ")[2] for line in lines)[-_LAST_BYTES:]
    return text.decode(errors="replace")
