"""What TLS costs, against the same calls in the clear, in one run.

A server answers on two ports of the loopback address, one of them encrypted. Measured in turns:

- `process_ms`: a new process of Python, from its start to the first answer: imports, the derivation
  of the certificates, handshake, call;
- `connection_ms`: a new connection of a process that runs, to its first answer;
- `small_us`: a call that says and answers almost nothing;
- `up_us`, `down_us`: a call with a request, or an answer, of 300 KB.

`parts_ms` are what a process pays once: the import of `cryptography` and the derivation; and what
it would pay for a token that is stretched (`scrypt`, 16 MiB).

    python benchmarks/encryption.py [--repeat 20] [--calls 2000]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import in_the_clear
from report import report

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

KINDS = ("plain", "tls")
SIZE = 300_000

SERVER = """
import sys
import in_the_clear
from torch_edl.wire import master_pb2 as pb, services
from torch_edl.wire.server import serve
handlers = dict.fromkeys(services.methods(services.CONTROL), lambda r, c: None)
handlers["Scale"] = lambda r, c: pb.ScaleResponse()
handlers["Stop"] = lambda r, c: pb.StopResponse()
handlers["GetStatus"] = lambda r, c: pb.GetStatusResponse(job="x" * {size})
servers = []
for kind in sys.argv[2:]:
    in_the_clear.use(kind)
    where = "127.0.0.1:0"
    listening, port = serve(
        services.CONTROL, handlers, address=where, token=sys.argv[1], threads=2)
    servers.append(listening)
    print(f"127.0.0.1:{{port}}", flush=True)
sys.stdin.read()
"""
CLIENT = """
import sys
import in_the_clear
from torch_edl.wire import master_pb2 as pb, services
from torch_edl.wire.channel import Stub
in_the_clear.use(sys.argv[3])
Stub(services.CONTROL, sys.argv[2], sys.argv[1]).call(pb.ScaleRequest(), timeout_s=60)
print("answered", flush=True)
"""
HERE = Path(__file__).parent


@contextlib.contextmanager
def server(token: str) -> Iterator[dict[str, str]]:
    """Where it listens, by kind."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER.format(size=SIZE), token, *KINDS],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield {kind: process.stdout.readline().strip() for kind in KINDS}
        assert process.stdin is not None
        process.stdin.close()


def process(kind: str, address: str, token: str) -> float:
    """Seconds until a new process has its first answer."""
    began = time.perf_counter()
    command = [sys.executable, "-c", CLIENT, token, address, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=HERE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"answered\n"
        return time.perf_counter() - began


def connection(kind: str, address: str, token: str) -> float:
    """Seconds until a new connection has its first answer."""
    in_the_clear.use(kind)
    began = time.perf_counter()
    with contextlib.closing(Stub(services.CONTROL, address, token)) as stub:
        stub.call(pb.ScaleRequest(), timeout_s=60)
        return time.perf_counter() - began


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def parts(token: str) -> dict[str, float]:
    """What a process pays once, in a new process."""
    program = """
import sys, time
began = time.perf_counter()
from torch_edl.wire.security import certificates
imported = time.perf_counter()
certificates.of_token(sys.argv[1])
print(1e3 * (imported - began), 1e3 * (time.perf_counter() - imported))
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", program, token], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(5)
    ]
    stretch = [timed(lambda: hashlib.scrypt(b"t", salt=b"s", n=2**14, r=8, p=1)) for _ in range(5)]
    return {
        "import": statistics.median(float(each[0]) for each in found),
        "derive": statistics.median(float(each[1]) for each in found),
        "scrypt": 1e3 * statistics.median(stretch),
    }


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--calls", type=int, default=2000)
    args = parser.parse_args()
    token = secrets.token_urlsafe(32)
    seconds: dict[str, dict[str, list[float]]] = {}

    def note(figure: str, kind: str, value: float) -> None:
        seconds.setdefault(figure, {}).setdefault(kind, []).append(value)

    with server(token) as where, contextlib.ExitStack() as stack:
        for _ in range(args.repeat):
            for kind, address in where.items():
                note("process_ms", kind, process(kind, address, token))
        stubs = {}
        for kind, address in where.items():
            connection(kind, address, token)  # what a process pays once
            stub = stack.enter_context(contextlib.closing(Stub(services.CONTROL, address, token)))
            stubs[kind] = stub
        requests = {
            "small_us": pb.ScaleRequest(),
            "up_us": pb.StopRequest(reason="x" * SIZE),
            "down_us": pb.GetStatusRequest(),
        }
        for number in range(args.calls):
            for kind, address in where.items():
                if number < 5 * args.repeat:
                    note("connection_ms", kind, connection(kind, address, token))
                for figure, request in requests.items():
                    stub = stubs[kind]
                    took = timed(lambda s=stub, r=request: s.call(r, timeout_s=60))
                    note(figure, kind, took)
    figures: dict[str, object] = {}
    for figure, by_kind in seconds.items():
        unit = 1e3 if figure.endswith("_ms") else 1e6
        medians = {kind: unit * statistics.median(values) for kind, values in by_kind.items()}
        figures[figure] = {
            **{kind: round(value, 1) for kind, value in medians.items()},
            "ratio": round(medians["tls"] / medians["plain"], 2),
        }
    figures["parts_ms"] = {name: round(value, 1) for name, value in parts(token).items()}
    report("encryption", figures)


if __name__ == "__main__":
    main()
