"""Checks of the folders to which a job writes: space, and speed of the disk."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from torch_edl.checkpoint.durable import check_writable
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.folder import jobs_home
from torch_edl.plugins.doctor.finding import GB, MB, Finding, ok, problem, size, warning

_LEAST, _FEW = 100 * MB, 2 * GB
_FEW_FILES = 1000
_PIECE, _PIECES = 8 << 20, 8
_PATIENCE_S = 3.0
_SMALL, _SYNCS = 4096, 16
_SLOW = 30 * MB
_SLOW_SYNC_S = 0.05
_STATE_BYTES = 256 << 10  # written by a job without checkpoints


def output(folder: str) -> Iterator[Finding]:
    """Check the folder of ``--output``.

    Args:
        folder: path of a folder, which may not exist yet.
    """
    yield _checked("output folder", Path(folder).expanduser().absolute(), "--output", _LEAST)


def home() -> Iterator[Finding]:
    """Check the folder with the state and the logs of jobs."""
    yield _checked("job folder", jobs_home(), "TORCH_EDL_HOME", _STATE_BYTES)


def _checked(check: str, path: Path, option: str, least: float) -> Finding:
    elsewhere = f"name another folder with {option}"
    try:
        check_writable(path, option, is_file=False)
    except UsageError as error:
        text, _, fix = str(error).partition("; ")
        return problem(check, text, fix or elsewhere, folder=str(path))
    except OSError as error:  # this user may not enter a parent
        return problem(check, f"{path}: {error.strerror}", elsewhere, folder=str(path))
    place = path
    while not place.is_dir():
        place = place.parent
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    text, values = f"{path}: {size(free)} free", {"folder": str(path), "free_bytes": free}
    if free < least:
        return problem(check, text, f"free space there, or {elsewhere}", **values)
    if free < _FEW:
        fix = f"checkpoints of large models need more: free space there, or {elsewhere}"
        return warning(check, text, fix, **values)
    if found.f_files and found.f_favail < _FEW_FILES:
        fix = f"remove files from this disk, or {elsewhere}"
        return warning(check, f"{text}, but only {found.f_favail:,} more files", fix, **values)
    try:
        speed, sync_s = _speed(place)
    except OSError as error:
        return problem(check, f"{path}: {error.strerror}", elsewhere, **values)
    values |= {"write_bytes_per_s": round(speed), "sync_s": sync_s}
    text += f", {speed / MB:,.0f} MB/s, a sync takes {sync_s * 1e3:.1f} ms"
    if speed < _SLOW or sync_s > _SLOW_SYNC_S:
        fix = f"checkpoints and servers with --fsync will wait for this disk; {elsewhere}"
        return warning(check, text, fix, **values)
    return ok(check, text, **values)


def _speed(folder: Path) -> tuple[float, float]:
    """Return bytes per second that reach the disk, and seconds of a sync of 4 KiB."""
    piece = os.urandom(_PIECE)  # no file system compresses it
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        written, began = 0, time.perf_counter()
        for _ in range(_PIECES):
            written += file.write(piece)
            os.fdatasync(file)
            if time.perf_counter() - began > _PATIENCE_S:
                break
        speed = written / (time.perf_counter() - began)
        times = []
        for _ in range(_SYNCS):
            began = time.perf_counter()
            file.write(piece[:_SMALL])
            os.fdatasync(file)
            times.append(time.perf_counter() - began)
            if sum(times) > _PATIENCE_S:
                break
    return speed, sorted(times)[len(times) // 2]
