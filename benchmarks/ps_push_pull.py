"""Time of one pull and one push of a batch of embedding rows, against an empty echo.

The server runs in its own process with one Adagrad table of a million rows. Beside it run two echo
servers, one of ZeroMQ with the options of the data plane and one of gRPC, that only answer requests
of the same size with answers of the same size. The ZeroMQ echo takes what transport alone costs;
the gRPC echo takes the time of an ordinary call. All servers are called in turn in one run, so that
other programs of the machine slow all of them.

    python benchmarks/ps_push_pull.py [--quick] [--torch]

Ids are distinct, out of the million: `uniform`, or `zipf`, the distinct ones of as many
Zipf(1.2) draws as it takes. One JSON line per point; all are appended to
benchmarks/results/ps_push_pull.jsonl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import zmq
from report import report

from torch_edl import _core
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.wire import codec, services
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import tensor_pb2 as tensor
from torch_edl.wire.channel import COMMON_OPTIONS, Stub
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.sockets import COPIED_BYTES
from torch_edl.wire.data_plane.stub import DataStub

ROWS = 1_000_000
TOKEN = "benchmark"
POINTS = [(n, d) for d in (8, 16, 64) for n in (1_000, 4_000, 10_000, 100_000)]
QUICK = [(4_000, 16)]

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


def serve_zeromq_echo() -> None:
    """The same as :func:`serve_echo` over ZeroMQ, each answer a frame of its own."""
    _core.tune_malloc()
    with tempfile.TemporaryDirectory() as folder:
        router = zmq.Context.instance().socket(zmq.ROUTER)
        router.linger = 0
        router.copy_threshold = COPIED_BYTES
        endpoint = f"ipc://{folder}/echo"
        router.bind(endpoint)
        sys.stdout.write(f"listening on {endpoint}\n")
        sys.stdout.flush()
        answers: dict[bytes, bytes] = {}
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(sys.stdin, zmq.POLLIN)
        while router in dict(poller.poll()):
            sender, head, *_ = router.recv_multipart(copy=False)
            size = head.bytes
            if size not in answers:
                answers[size] = bytes(int.from_bytes(size, "little"))
            router.send_multipart([sender, answers[size]], copy=False)
        router.close()


def serve_echo() -> None:
    """Answers each request with as many bytes as its first eight name, until stdin closes."""
    _core.tune_malloc()
    answers: dict[bytes, bytes] = {}

    def echo(request: bytes, _: grpc.ServicerContext) -> bytes:
        head = request[:8]
        if head not in answers:
            answers[head] = bytes(int.from_bytes(head, "little"))
        return answers[head]

    server = grpc.server(ThreadPoolExecutor(8), options=COMMON_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench", {"Echo": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"listening on 127.0.0.1:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop(0)


class Process:
    """A server of ours or the echo, ended with the block."""

    def __init__(self, *command: str) -> None:
        env = {k: v for k, v in os.environ.items() if k != ENV_MASTER} | {ENV_TOKEN: TOKEN}
        self._process = subprocess.Popen(
            [sys.executable, *command],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        *_, self.endpoint, self.address = self._process.stdout.readline().split()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def draw(distribution: str, n: int, rng: np.random.Generator) -> Ids:
    """n distinct ids in [0, ROWS), in random order."""
    if distribution == "uniform":
        return rng.choice(ROWS, n, replace=False).astype(np.int64)
    seen = np.empty(0, np.int64)
    while len(seen) < n:
        # Ranks spread over the id space, as hashing features into ids does.
        drawn = (rng.zipf(1.2, 8 * n) % ROWS) * 7_368_787 % ROWS
        both = np.concatenate([seen, drawn.astype(np.int64)])
        _, first = np.unique(both, return_index=True)
        seen = both[np.sort(first)]
    return rng.permutation(seen[:n])


class Server:
    """One pull and one push of a table, from arrays to arrays, one call at a time as the echo's.

    (A worker's client starts such a call to each server at once and computes meanwhile.)
    """

    def __init__(self, server: Process, dim: int, *, task: int = 0) -> None:
        self.dim = dim
        self._task = task  # whose records the pushes are of
        self._fence = pb.Fence(job="bench", incarnation=1)
        self._stub = Stub(services.PSERVER, server.address, TOKEN, retries=False)
        self._data = DataStub(server.endpoint, TOKEN)
        self._pushes = 0

    def fill(self) -> None:
        """Makes the table, with all its rows."""
        group = pb.ParamGroup(hyper={"lr": 0.01})
        self._data.call(
            Framed(
                pb.PushDenseParametersRequest(
                    fence=self._fence,
                    optimizer=pb.OptimizerConfig(kind="adagrad", groups=[group]),
                )
            ),
            timeout_s=60,
        )
        info = pb.EmbeddingTableInfo(
            name="table",
            dim=self.dim,
            initializer=pb.Initializer(kind="normal", args={"std": 0.01}),
            num_embeddings=ROWS,
        )
        tables = pb.PushEmbeddingTableInfosRequest(fence=self._fence, infos=[info])
        self._stub.call(tables, timeout_s=60)
        for start in range(0, ROWS, 100_000):
            self.pull(np.arange(start, min(ROWS, start + 100_000), dtype=np.int64))

    def pull(self, ids: Ids) -> Floats:
        """Rows (n, dim) of ids (n,)."""
        call = Framed(pb.PullRequest(fence=self._fence), answer_bytes=4 * self.dim * len(ids))
        call.put_ids(call.message.tables.add(name="table"), ids)
        answer = self._data.call(call, timeout_s=60)
        return codec.from_proto(answer.message.vectors[0], answer.frames)

    def push(self, ids: Ids, gradients: Floats) -> None:
        """One update of the rows of ids (n,) with gradients (n, dim)."""
        self._pushes += 1
        request = pb.PushGradientsRequest(
            fence=self._fence,
            range=pb.RecordRange(task_id=self._task, first=self._pushes - 1, last=self._pushes),
        )
        call = Framed(request)
        entry = request.tables.add(name="table")
        call.put_ids(entry, ids)
        call.put(entry.values, gradients)
        answer = self._data.call(call, timeout_s=60).message
        assert answer.accepted
        assert not answer.duplicate

    def close(self) -> None:
        """Closes the connections."""
        self._stub.close()
        self._data.close()


def wire_sizes(n: int, dim: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(request, response) bytes of our pull and of our push."""
    ids, rows = bytes(8 * n), bytes(4 * n * dim)
    shape = tensor.TensorShapeProto(
        dim=[tensor.TensorShapeProto.Dim(size=n), tensor.TensorShapeProto.Dim(size=dim)]
    )
    values = tensor.TensorProto(dtype=tensor.DT_FLOAT, tensor_shape=shape, tensor_content=rows)
    fence = pb.Fence(job="bench", incarnation=1)
    pull = pb.PullRequest(fence=fence, tables=[pb.TableIds(name="table", ids=ids)])
    answer = pb.PullResponse(initialized=True, version=1000, vectors=[values])
    push = pb.PushGradientsRequest(
        fence=fence,
        range=pb.RecordRange(first=1000, last=1001),
        tables=[pb.TableGradient(name="table", ids=ids, values=values)],
    )
    done = pb.PushGradientsResponse(accepted=True, version=1000)
    return (pull.ByteSize(), answer.ByteSize()), (push.ByteSize(), done.ByteSize())


def torch_pass(dim: int) -> Callable[[Ids, Floats], tuple[float, float]]:
    """Lookup and sparse Adagrad step of nn.Embedding in this process, seconds each."""
    import torch

    torch.set_num_threads(1)
    table = torch.nn.Embedding(ROWS, dim, sparse=True)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=0.01)

    def run(ids: Ids, gradients: Floats) -> tuple[float, float]:
        start = time.perf_counter()
        rows = table(torch.from_numpy(ids))
        middle = time.perf_counter()
        rows.backward(torch.from_numpy(gradients))
        optimizer.step()
        optimizer.zero_grad()
        return middle - start, time.perf_counter() - middle

    return run


def measure(
    server: Server,
    echoes: dict[str, Callable[[bytes], object]],
    n: int,
    distribution: str,
    repeats: int,
    plain: Callable[[Ids, Floats], tuple[float, float]] | None,
) -> dict[str, Any]:
    """Median and least milliseconds of each call, all kinds taken in turn."""
    rng = np.random.default_rng(n)
    batches = [draw(distribution, n, rng) for _ in range(8)]
    gradients = rng.standard_normal((n, server.dim), dtype=np.float32)
    sizes = wire_sizes(n, server.dim)
    requests = [answer.to_bytes(8, "little") + bytes(request - 8) for request, answer in sizes]
    times: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], object]) -> None:
        start = time.perf_counter()
        call()
        times.setdefault(name, []).append(time.perf_counter() - start)

    for i in range(repeats + 5):
        if i == 5:
            times.clear()  # the first ones open windows, fill caches and grow buffers
        k = i % len(batches)
        for plane, echo in echoes.items():
            timed(f"{plane}_echo_pull", lambda: echo(requests[0]))  # noqa: B023
            timed(f"{plane}_echo_push", lambda: echo(requests[1]))  # noqa: B023
        timed("pull", lambda: server.pull(batches[k]))  # noqa: B023
        timed("push", lambda: server.push(batches[k], gradients))  # noqa: B023
        if plain:
            look, step = plain(batches[k], gradients)
            times.setdefault("torch_lookup", []).append(look)
            times.setdefault("torch_step", []).append(step)
    result: dict[str, Any] = {}
    for name, values in times.items():
        result[f"{name}_ms"] = round(1e3 * float(np.median(values)), 3)
        result[f"{name}_min_ms"] = round(1e3 * min(values), 3)
    for plane in echoes:
        echo_ms = result[f"{plane}_echo_pull_ms"] + result[f"{plane}_echo_push_ms"]
        share = echo_ms / (result["pull_ms"] + result["push_ms"])
        result[f"of_{plane}_echo"] = round(share, 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--echo-server", choices=("grpc", "zeromq"), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="4,000 ids of dim 16 only")
    parser.add_argument("--torch", action="store_true", help="also nn.Embedding(sparse=True)")
    parser.add_argument("--repeats", type=int, default=200, help="batches per point")
    args = parser.parse_args()
    if args.echo_server:
        serve_echo() if args.echo_server == "grpc" else serve_zeromq_echo()
        return
    _core.tune_malloc()
    points = QUICK if args.quick else POINTS
    for dim in sorted({d for _, d in points}):
        ours = ("-m", "torch_edl.ps_server", "--job=bench", "--shard=0", "--shards=1")
        with (
            Process(*ours, "--incarnation=1") as ps,
            Process(__file__, "--echo-server", "grpc") as grpc_echo,
            Process(__file__, "--echo-server", "zeromq") as zeromq_echo,
        ):
            server = Server(ps, dim)
            server.fill()
            options = [*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
            channel = grpc.insecure_channel(grpc_echo.address, options=options)
            dealer = zmq.Context.instance().socket(zmq.DEALER)
            dealer.linger = 0
            dealer.copy_threshold = COPIED_BYTES
            dealer.connect(zeromq_echo.address)

            def echo(request: bytes, dealer: Any = dealer) -> object:
                dealer.send_multipart([request[:8], memoryview(request)[8:]], copy=False)
                return dealer.recv_multipart(copy=False)

            echoes = {"zeromq": echo, "grpc": channel.unary_unary("/bench/Echo")}
            plain = torch_pass(dim) if args.torch else None
            for n in (n for n, d in points if d == dim):
                for distribution in ("uniform", "zipf"):
                    repeats = max(20, args.repeats * 4_000 // max(n, 4_000))
                    figures = {
                        "ids": n,
                        "dim": dim,
                        "rows": ROWS,
                        "optimizer": "adagrad",
                        "distribution": distribution,
                        "repeats": repeats,
                        **measure(server, echoes, n, distribution, repeats, plain),
                    }
                    report("ps_push_pull", figures)
            server.close()
            channel.close()
            dealer.close()


if __name__ == "__main__":
    main()
