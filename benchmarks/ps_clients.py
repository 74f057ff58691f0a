"""What one parameter server does for 1, 2 and 4 workers at once, without and with a journal.

Each client is a process that pulls and pushes 4,000 rows of dim 16 in turn, as fast as the
server answers, and computes nothing. `rows_per_s` counts pulled and pushed rows of all clients;
`server_cpu_us` is the user and system time of the server for one pull and one push.

    python benchmarks/ps_clients.py [--seconds 4]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import psutil
from ps_push_pull import Process, Server, draw
from report import report

from torch_edl import _core

IDS, DIM = 4_000, 16
CLIENTS = (1, 2, 4)
KINDS = ("checkpoint", "journal")


def client(server: Process, task: int, barrier: Any, end: Any, done: Any) -> None:
    """Calls until the end, and puts its number of turns and the median of their time in ms."""
    _core.tune_malloc()
    calls = Server(server, DIM, task=task)
    rng = np.random.default_rng(task)
    batches = [draw("uniform", IDS, rng) for _ in range(8)]
    gradients = rng.standard_normal((IDS, DIM), dtype=np.float32)

    def turn(number: int) -> None:
        ids = batches[number % len(batches)]
        calls.pull(ids)
        calls.push(ids, gradients)

    for number in range(20):
        turn(number)
    barrier.wait()
    times = []
    while not end.is_set():
        start = time.perf_counter()
        turn(len(times))
        times.append(time.perf_counter() - start)
    done.put((len(times), 1e3 * statistics.median(times)))
    calls.close()


def together(server: Process, pid: int, count: int, seconds: float, first: int) -> dict[str, Any]:
    """Return the figures of several clients at once."""
    context = multiprocessing.get_context("spawn")
    barrier, end, done = context.Barrier(count + 1), context.Event(), context.Queue()
    clients = [
        context.Process(target=client, args=(server, first + n, barrier, end, done))
        for n in range(count)
    ]
    for each in clients:
        each.start()
    barrier.wait()
    before, start = psutil.Process(pid).cpu_times(), time.perf_counter()
    time.sleep(seconds)
    after, passed = psutil.Process(pid).cpu_times(), time.perf_counter() - start
    end.set()
    turns, medians = zip(*(done.get() for _ in clients), strict=True)
    for each in clients:
        each.join()
    used = after.user + after.system - before.user - before.system
    return {
        "rows_per_s": round(2 * IDS * sum(turns) / passed),
        "turn_ms": round(statistics.median(medians), 2),
        "server_cpu_us": round(1e6 * used / sum(turns)),
    }


class Address:
    """Where a server listens; a process of its own can be given this."""

    def __init__(self, server: Process) -> None:
        self.address, self.endpoint = server.address, server.endpoint


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            command = ["-m", "torch_edl.ps_server", "--job=bench", "--shard=0", "--shards=1"]
            command += ["--incarnation=1"]
            command += [f"--journal={folder}/journal"] if kind == "journal" else []
            with Process(*command) as server:
                filling = Server(server, DIM)
                filling.fill()
                filling.close()
                where: Any = Address(server)
                for count in CLIENTS:
                    found = together(where, server.pid, count, args.seconds, 100 * count)
                    figures.setdefault(kind, {})[count] = found
    report("ps_clients", {"ids": IDS, "dim": DIM, **figures})


if __name__ == "__main__":
    main()
