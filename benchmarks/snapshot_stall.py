"""How long a push waits while the journal of a server is compacted.

One server with a journal holds tables of 1 GB. Pushes of 4,000 rows follow each other; when the
log is long enough, the server writes a snapshot of all rows in the background. Afterwards pushes go
on while another process, which shares nothing with the server but the machine, writes as many bytes
to the same disk in the same way. Counted: the longest push beside the snapshot and the longest push
beside the other process; the difference is what the snapshot itself costs. Medians of several runs.

    python benchmarks/snapshot_stall.py [--mb 1000] [--dense-mb 0] [--fsync interval] [--repeat 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from report import report

from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.ps_server.snapshots import LOG_BYTES
from torch_edl.wire import pserver_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub
from torch_edl.wire.codec import Framed
from torch_edl.wire.data_plane.stub import DataStub

_DIM = 16
_ROW_BYTES = 192  # weights and sums of Adagrad, and what stands behind them
_IDS = 4000
_FENCE = pb.Fence(job="bench", incarnation=1)
_TOKEN = "bench"
_LIMIT_S = 300.0
# What a snapshot does to the machine, in a process of its own: arguments are a file and megabytes.
_WRITER = """
import sys
import numpy as np
from pathlib import Path
from torch_edl.checkpoint import tensor_files
from torch_edl.checkpoint.durable import sync
path, left = Path(sys.argv[1]), int(sys.argv[2]) << 20
while left > 0:
    rows = np.ones(min(left, tensor_files.PART_BYTES), np.uint8)
    tensor_files.write(path, {"rows": rows}, {}, steadily=True)
    sync(path)
    left -= tensor_files.PART_BYTES
"""


class Server:
    """A server process with a table of ``rows`` rows."""

    def __init__(self, journal: Path, fsync: str, rows: int, dense: int) -> None:
        command = [
            *(sys.executable, "-m", "torch_edl.ps_server", "--job", "bench", "--shard", "0"),
            *("--shards", "1", "--incarnation", "1", "--journal", str(journal), "--fsync", fsync),
        ]
        environment = {k: v for k, v in os.environ.items() if k != ENV_MASTER}
        self._process = subprocess.Popen(
            command, env={**environment, ENV_TOKEN: _TOKEN}, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        *_, endpoint, address = self._process.stdout.readline().split()
        self._stub = Stub(services.PSERVER, address, _TOKEN)
        self._data = DataStub(endpoint, _TOKEN)
        self._rows, self._pushes = rows, 0
        self._values = np.full((_IDS, _DIM), 0.01, np.float32)
        self._rng = np.random.default_rng(0)
        group = pb.ParamGroup(hyper={"lr": 0.01})
        call = Framed(
            pb.PushDenseParametersRequest(
                optimizer=pb.OptimizerConfig(kind="adagrad", groups=[group])
            )
        )
        call.put(call.message.parameters.add(name="w").value, np.ones(dense, np.float32))
        self._send(call)
        info = pb.EmbeddingTableInfo(name="t", dim=_DIM, initializer=pb.Initializer(kind="zeros"))
        self._stub.call(pb.PushEmbeddingTableInfosRequest(fence=_FENCE, infos=[info]), timeout_s=60)
        for first in range(0, rows, 100_000):
            pull = Framed(pb.PullRequest())
            entry = pull.message.tables.add(name="t")
            pull.put_ids(entry, np.arange(first, min(first + 100_000, rows)))
            self._send(pull)

    def _send(self, call: Framed) -> None:
        call.message.fence.CopyFrom(_FENCE)
        self._data.call(call, timeout_s=60)

    def push(self) -> float:
        """Seconds of one push."""
        ids = np.unique(self._rng.integers(0, self._rows, 2 * _IDS))[:_IDS]
        call = Framed(
            pb.PushGradientsRequest(range=pb.RecordRange(first=self._pushes, last=self._pushes + 1))
        )
        entry = call.message.tables.add(name="t")
        call.put_ids(entry, ids)
        call.put(entry.values, self._values)
        self._pushes += 1
        began = time.perf_counter()
        self._send(call)
        return time.perf_counter() - began

    def close(self) -> None:
        """Ends the process."""
        self._stub.close()
        self._data.close()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def measure(folder: Path, fsync: str, rows: int, dense: int) -> dict[str, float]:
    """Pushes until a snapshot is complete: the first one, or, where the dense parameters alone make
    the log long enough for one, the second."""
    server = Server(folder, fsync, rows, dense)
    before: list[float] = []
    during: list[float] = []
    began = 0.0
    deadline = time.monotonic() + _LIMIT_S
    try:
        while 4 * dense > LOG_BYTES and not list(folder.glob("*/snapshot-*")):
            time.sleep(0.1)
        first = set(folder.glob("*/snapshot-*"))
        while not set(folder.glob("*/snapshot-*")) - first:
            seconds = server.push()
            if began or list(folder.glob("*/.snapshot-*")):
                began = began or time.perf_counter()
                during.append(seconds)
            else:
                before.append(seconds)
            if time.monotonic() > deadline:
                raise SystemExit(f"no snapshot within {_LIMIT_S} s")
        lasted = time.perf_counter() - began
        (snapshot,) = set(folder.glob("*/snapshot-*")) - first
        size = sum(path.stat().st_size for path in snapshot.iterdir())
        writer = [sys.executable, "-c", _WRITER, str(folder.parent / "beside"), str(size >> 20)]
        beside: list[float] = []
        other = subprocess.Popen(writer)
        while other.poll() is None or len(beside) < len(during):
            beside.append(server.push())
    finally:
        server.close()
    beside = beside[: len(during)]
    return {
        "usual_ms": 1000 * float(np.median(before)),
        "usual_during_ms": 1000 * float(np.median(during)),
        "longest_before_ms": 1000 * max(before[-len(during) :]),
        "longest_during_ms": 1000 * max(during),
        "longest_beside_ms": 1000 * max(beside),
        "over_10_ms_during": sum(seconds > 0.01 for seconds in during),
        "over_10_ms_beside": sum(seconds > 0.01 for seconds in beside),
        "stall_ms": 1000 * (max(during) - max(beside)),
        "pushes_during": len(during),
        "snapshot_s": lasted,
    }


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1000, help="of the tables")
    parser.add_argument(
        "--dense-mb", type=int, default=0, help="of dense parameters, which no push changes"
    )
    parser.add_argument("--fsync", choices=("never", "interval", "always"), default="interval")
    parser.add_argument("--folder", help="of the journal (default: a temporary one)")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    runs = [_run(args) for _ in range(args.repeat)]
    medians = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
    longest = {"longest_during_ms": [round(run["longest_during_ms"], 2) for run in runs]}
    report(
        "snapshot_stall",
        {"mb": args.mb, "dense_mb": args.dense_mb, **medians, "runs": longest},
    )


def _run(args: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        rows, dense = args.mb * 1_000_000 // _ROW_BYTES, args.dense_mb * 250_000
        return measure(Path(name) / "journal", args.fsync, rows, dense)


if __name__ == "__main__":
    main()
