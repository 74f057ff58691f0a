"""A sum over two processes of a machine: torch's Gloo, and the streams of Keras models.

Both sides of a pair sum an array of float32 in place, again and again; figures are medians in ms
by size. In turns: `gloo` over the loopback address, `streams` over a Unix socket, and `tls`, the
streams as they are between machines, over the loopback address.

    python benchmarks/ring_exchange.py [--repeat 5]
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from report import report

from tf_compat.collectives.stream_group import StreamGroup
from tf_compat.collectives.stream_listener import StreamListener
from torch_edl.wire.endpoint import LOOPBACK, REMOTE

SIZES_MB = (1, 10, 100)
SECONDS = 1.0  # for each size
Sum = Callable[[np.ndarray[Any, Any]], Any]


def measured(rank: int, sum_up: Sum) -> dict[int, float]:
    """Medians in ms by size; rank 0 says when it is enough."""
    medians = {}
    for size in SIZES_MB:
        array = np.ones(size * (1 << 18), np.float32)
        go_on, times = np.ones(1, np.float32), []
        begin = time.perf_counter()
        while True:
            go_on[:] = rank == 0 and time.perf_counter() - begin < SECONDS
            sum_up(go_on)
            if not go_on[0]:
                break
            array[:] = 1
            sum_up(go_on)  # both begin together
            started = time.perf_counter()
            sum_up(array)
            times.append(time.perf_counter() - started)
        medians[size] = 1e3 * statistics.median(times[1:] or times)
    return medians


def streams(rank: int, host: str, token: str, pipe: Connection) -> None:
    with closing(StreamListener(host, token)) as meeting:
        pipe.send(meeting.address)
        with closing(StreamGroup(meeting, pipe.recv(), 1, rank, 2, meet_s=30)) as group:
            pipe.send(measured(rank, group.allreduce))


def gloo(rank: int, host: str, port: int, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    where = f"tcp://{host}:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    pipe.send("")
    pipe.recv()
    pipe.send(measured(rank, lambda array: dist.all_reduce(torch.from_numpy(array))))
    dist.destroy_process_group()


def pair(program: Callable[..., None], *args: Any) -> dict[int, float]:
    """What rank 0 has measured."""
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    processes = [
        multiprocessing.Process(target=program, args=(rank, *args, pipes[rank][1]))
        for rank in range(2)
    ]
    for process, (_, far) in zip(processes, pipes, strict=True):
        process.start()
        far.close()  # its end is noticed
    addresses = [near.recv() for near, _ in pipes]
    for near, _ in pipes:
        near.send(addresses[0])
    found = [near.recv() for near, _ in pipes]
    for process in processes:
        process.join()
    return found[0]  # type: ignore[no-any-return]


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    token = secrets.token_hex(16)
    runs: dict[str, list[dict[int, float]]] = {"gloo": [], "streams": [], "tls": []}
    for _ in range(repeat):
        with socket.create_server((LOOPBACK, 0)) as free:
            port = free.getsockname()[1]
        runs["gloo"].append(pair(gloo, LOOPBACK, port))
        runs["streams"].append(pair(streams, LOOPBACK, token))
        runs["tls"].append(pair(streams, f"{REMOTE}{LOOPBACK}", token))
    medians = {
        kind: {
            f"{size} MB": round(statistics.median(run[size] for run in found), 2)
            for size in SIZES_MB
        }
        for kind, found in runs.items()
    }
    report("ring_exchange", {"ms": medians, "repeat": repeat})


if __name__ == "__main__":
    main()
