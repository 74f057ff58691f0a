"""Checks of the machine: memory, shared memory, limits of the user and of the container, clock."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch_edl
from torch_edl.plugins.doctor.cgroups import room
from torch_edl.plugins.doctor.finding import GB, MB, Finding, ok, problem, size, warning

# Memory of a worker, a server and a master with a small model, as measured on 64-bit Linux.
_LEAST_MEMORY, _FEW_MEMORY = 600 * MB, 2 * GB
_SHM = Path("/dev/shm")
_FEW_SHM = 256 * MB
# The size that clients of a server map; only used pages take memory.
_MAPPED = 4 << 30
# A worker, a server and a master have up to 25 open files each.
_LEAST_FILES, _FEW_FILES = 32, 1024
_ENOUGH_FILES = 65536
# On two cores, a job of a worker and a server ran with 56 threads, and failed with 41.
_LEAST_THREADS, _FEW_THREADS = 50, 500
_NOT_SYNCHRONIZED = 0x40  # STA_UNSYNC of adjtimex(2)
_TIMEX_BYTES, _STATUS_AT = 208, 40
_READS, _SLOW_READ_S = 10_000, 1e-6
_INFINIBAND = Path("/sys/class/infiniband")
_FEW_LOCKED = 1 * GB

_OPEN = "import sys; from torch_edl import _core; _core.SharedMemory.open(sys.argv[1])"


def memory() -> Iterator[Finding]:
    """Check the free memory of the machine and of the container."""
    free = min(_meminfo("MemAvailable"), room("memory", default=1 << 62))
    text, values = f"{size(free)} free", {"free_bytes": free}
    fix = "free memory, or raise the limit of the container (docker run --memory)"
    if free < _LEAST_MEMORY:
        text += f"; a worker, a server and a master need {size(_LEAST_MEMORY)}"
        yield problem("memory", text, fix, **values)
    elif free < _FEW_MEMORY:
        fix = f"run few workers (each needs about 0.5 GB plus its batches), or {fix}"
        yield warning("memory", text, fix, **values)
    else:
        yield ok("memory", text, **values)


def shared_memory() -> Iterator[Finding]:
    """Check that another process can map memory of this one, and the size of ``/dev/shm``."""
    error = _mapped()
    if error:
        fix = (
            "workers and servers on one machine will exchange data through sockets, which is "
            "slower; allow this user to call memfd_create and to open /proc/PID/fd (see the "
            "seccomp profile, and the mount option hidepid of /proc)"
        )
        yield warning("shared memory", error, fix, memfd=False)
    else:
        yield ok("shared memory", "processes can share memory (memfd)", memfd=True)
    try:
        found = os.statvfs(_SHM)
    except OSError as missing:
        fix = "mount a tmpfs at /dev/shm, or do not use --loader-workers, which needs it"
        yield warning("/dev/shm", f"{missing.strerror}", fix, free_bytes=0)
        return
    free = found.f_bavail * found.f_frsize
    if free < _FEW_SHM:
        fix = (
            "the processes of --loader-workers pass batches through /dev/shm: start the container "
            "with --shm-size 2g, or do not use --loader-workers"
        )
        yield warning("/dev/shm", f"{size(free)} free", fix, free_bytes=free)
    else:
        yield ok("/dev/shm", f"{size(free)} free", free_bytes=free)


def _mapped() -> str:
    """Return the error when another process maps shared memory of this one; empty if it works."""
    try:
        file = os.memfd_create("doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return f"memfd_create: {error.strerror}"
    try:
        os.ftruncate(file, _MAPPED)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        root = str(Path(torch_edl.__file__).parents[1])
        path = f"/proc/{os.getpid()}/fd/{file}"
        env = {**os.environ, "PYTHONPATH": root}
        done = subprocess.run(
            [sys.executable, "-P", "-c", _OPEN, path], env=env, capture_output=True, text=True
        )
    except OSError as error:
        return f"memory of {size(_MAPPED)}: {error.strerror}"
    finally:
        os.close(file)
    lines = done.stderr.strip().splitlines()
    return lines[-1] if done.returncode and lines else ""


def limits() -> Iterator[Finding]:
    """Check the limits of open files, of processes and threads, and of locked memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files, values = _count(soft), {"soft": _of(soft), "hard": _of(hard)}
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        fix = "the master and each server keep a socket open for each worker: "
        if hard != resource.RLIM_INFINITY and hard < _FEW_FILES:
            fix += "raise the hard limit (limits.conf, docker run --ulimit nofile=65536)"
        else:
            fix += f"ulimit -n {_ENOUGH_FILES if hard < 0 else min(hard, _ENOUGH_FILES)}"
        made = problem if soft < _LEAST_FILES else warning
        yield made("open files", f"limit {files}", fix, **values)
    else:
        yield ok("open files", f"limit {files}", **values)
    yield _threads()
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    text = "unlimited" if locked == resource.RLIM_INFINITY else size(locked)
    if _INFINIBAND.is_dir() and locked != resource.RLIM_INFINITY and locked < _FEW_LOCKED:
        fix = "NCCL over InfiniBand locks its buffers: ulimit -l unlimited"
        yield warning("locked memory", f"limit {text}", fix, limit_bytes=_of(locked))
    else:
        yield ok("locked memory", f"limit {text}", limit_bytes=_of(locked))


def _threads() -> Finding:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    free = room("pids", default=1 << 62)
    if limit != resource.RLIM_INFINITY and os.geteuid():  # root is not limited
        free = min(free, limit - _own_threads())
    if free >= 1 << 62:
        return ok("processes", "no limit of processes and threads", free=None)
    text = f"{max(0, free):,} more processes and threads can be started"
    if free < _FEW_THREADS:
        fix = (
            "each process of a job has about 20 threads: raise ulimit -u, or the limit of the "
            "container (docker run --pids-limit), or end other processes"
        )
        made = problem if free < _LEAST_THREADS else warning
        return made("processes", text, fix, free=free)
    return ok("processes", text, free=free)


def _own_threads() -> int:
    """Return the number of threads of this user."""
    count = 0
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if each.stat().st_uid == os.geteuid():
                count += sum(1 for _ in (each / "task").iterdir())
        except OSError:  # the process has ended
            continue
    return count


def clock() -> Iterator[Finding]:
    """Check the time of day, its synchronization, and the cost of a reading."""
    now = time.time()
    build = (Path(torch_edl.__file__).parent / "__init__.py").stat().st_mtime
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    began = time.perf_counter()
    for _ in range(_READS):
        time.monotonic()
    read_s = (time.perf_counter() - began) / _READS
    synchronized = _is_synchronized()
    values = {"synchronized": synchronized, "read_ns": round(read_s * 1e9)}
    if now < build - 86_400:
        fix = "set the clock; TLS between machines and object stores reject a wrong time"
        yield warning("clock", f"{shown}, before torch-edl was installed", fix, **values)
    elif synchronized is False:
        fix = (
            "run chrony or systemd-timesyncd on this machine, or on the host of this container; "
            "TLS between machines and object stores reject a wrong time"
        )
        text = f"{shown}; the kernel reports that it is not synchronized"
        yield warning("clock", text, fix, **values)
    elif read_s > _SLOW_READ_S:
        fix = "choose a faster clock source, such as tsc (/sys/devices/system/clocksource)"
        yield warning("clock", f"a reading takes {read_s * 1e6:.1f} us", fix, **values)
    else:
        yield ok("clock", f"{shown}{', synchronized' if synchronized else ''}", **values)


def _is_synchronized() -> bool | None:
    """Return what the kernel says about its clock; None if it does not say."""
    state = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.CDLL(None, use_errno=True).adjtimex(state) < 0:
        return None
    status = int.from_bytes(state.raw[_STATUS_AT : _STATUS_AT + 4], sys.byteorder)
    return not status & _NOT_SYNCHRONIZED


def _meminfo(name: str) -> int:
    """Return an entry of ``/proc/meminfo``, bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise OSError(f"/proc/meminfo has no {name}")


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def _of(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
