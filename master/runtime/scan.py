"""Counts the records of a job's data while the first worker starts, or polls its streams.

The data are read in a separate process, ``python -m master.runtime.scan``: a damaged file may crash
the process that reads it or exhaust its memory, and a reader may hold the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict

from master.state.actions import DataScanned, StreamGrown
from torch_edl.config import JobConfig
from torch_edl.config.environment import ENV_PROCESS, ENV_TOKEN
from torch_edl.data.task_space import Shard
from torch_edl.errors import EdlError
from torch_edl.events import StreamsAnswer, StreamsSilent
from torch_edl.processes import exec_child
from torch_edl.processes.this_process import setup_logging

log = logging.getLogger(__name__)

Opened = Callable[[str, bool], None]
"""Callback with the name of a source: False before it is opened, True once it is counted."""

# Seconds between two polls of streams; the longest delay until a new record is in a task.
_EVERY_S = 0.5
_NAMED = 3  # number of sources that a message names
_KEPT_FROM_SCAN = (ENV_TOKEN, ENV_PROCESS)


def scan(config: JobConfig) -> DataScanned:
    """Count the records of all data in another process. If a source cannot be read, or reading it
    crashed the process, the result holds an error that names the source.

    The process ends with the thread that calls this function.
    """
    command = exec_child.words([sys.executable, "-P", "-m", "master.runtime.scan"])
    env = {name: value for name, value in os.environ.items() if name not in _KEPT_FROM_SCAN}
    done = subprocess.run(
        command, input=config.to_json(), stdout=subprocess.PIPE, text=True, env=env, check=False
    )
    opened: dict[str, None] = {}
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if "scanned" in said:
            return DataScanned.of(said["scanned"])
        if "opened" in said:
            opened[said["opened"]] = None
        else:
            opened.pop(said["counted"], None)
    return DataScanned({}, error=_crash(done.returncode, list(opened)))


def _crash(code: int, opened: Sequence[str]) -> str:
    """Return the error for a crash, from the exit code and the sources that were being read."""
    how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    fix = "leave it out, or write it again"
    if -code == signal.SIGKILL:
        fix = f"the machine may lack memory to read it; give it more, or {fix}"
    where = ", ".join(opened[:_NAMED]) + (" or another source" if len(opened) > _NAMED else "")
    return f"{where or 'the data'}: reading it ended the process that counts records ({how}); {fix}"


def count(config: JobConfig, opened: Opened = lambda name, done: None) -> DataScanned:
    """Open every source of the data in this process. An error is part of the result."""
    # Imported here: the module may import pyarrow.
    from torch_edl.data.sources import expand, parts

    wanted = {
        "train": {"train": config.data.train, "eval": config.data.eval},
        "evaluate": {"eval": config.data.eval},
        "predict": {"predict": config.data.predict},
    }[config.kind]
    shards: dict[str, Sequence[Shard]] = {}
    damaged, error = 0, ""
    try:
        for key, paths in wanted.items():
            if key == "train" and config.data.streams:
                _check_streams(paths)
            elif paths:
                files = paths if config.data.expanded else expand(paths)
                counted = _counted(parts(files), config, opened)
                shards[key] = [shard for shard, _ in counted]
                damaged += sum(lost for _, lost in counted)
    except (EdlError, OSError) as raised:
        error = str(raised)
    except Exception as raised:
        log.exception("the data cannot be counted")
        error = f"the data cannot be counted: {type(raised).__name__}: {raised}"
    return DataScanned(shards, damaged, error)


def _check_streams(topics: Sequence[str]) -> None:
    """Raise DataError unless all topics exist and can be read as streams."""
    from torch_edl.data.sources.opening import url_type

    for topic in topics:
        url_type(topic).check_stream(topic)


def _counted(files: Sequence[str], config: JobConfig, opened: Opened) -> list[tuple[Shard, int]]:
    """Return the shard of each file, and the number of its damaged records."""
    from torch_edl.data.sources import of_each, open_source

    def counted(path: str) -> tuple[Shard, int]:
        # The source is not kept: the footers of ten thousand files take gigabytes.
        data = config.data
        opened(path, False)
        try:
            source = open_source(path, format=data.format, skip_damaged=data.skip_damaged)
        except (EdlError, OSError):
            raise
        except Exception as error:
            log.exception("%s", path)
            raise EdlError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error
        opened(path, True)
        return Shard.counted(source), source.damaged

    return of_each(files, counted)


def watch_streams(
    topics: Sequence[str],
    apply: Callable[[StreamGrown | StreamsSilent | StreamsAnswer], None],
    ended: threading.Event,
) -> None:
    """Poll the brokers of streams for new records until the job has ended. The offsets of the
    partitions are passed to ``apply``, and the first error and the first answer after it."""
    # Imported here: the module may import pyarrow.
    from torch_edl.data.sources.opening import url_type

    silent = False
    while not ended.is_set():
        offsets: dict[str, tuple[int, int]] = {}
        error = ""
        try:
            for topic in topics:
                offsets |= url_type(topic).offsets([topic])
        except EdlError as raised:
            error = str(raised)
        if silent != bool(error):
            silent = bool(error)
            apply(StreamsSilent(error=error) if error else StreamsAnswer())
        if not error and not ended.is_set():
            apply(StreamGrown(offsets))
        ended.wait(_EVERY_S)


def main() -> int:
    """Read the configuration of a job from stdin. Writes JSON lines to stdout: each source when it
    is opened and when it is counted, then the result."""
    config = JobConfig.from_json(sys.stdin.read())
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries goes to the log
    setup_logging("master", 0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # the kernel kills this process before the master
    lock = threading.Lock()

    def say(said: dict[str, object]) -> None:
        with lock:
            print(json.dumps(said), file=answers)

    def opened(name: str, done: bool) -> None:
        say({"counted" if done else "opened": name})

    say({"scanned": asdict(count(config, opened))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
