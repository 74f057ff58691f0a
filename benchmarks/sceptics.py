"""A table for sceptics: the figures by which one compares torch-edl with something else.

    python benchmarks/sceptics.py                       # everything, about an hour
    python benchmarks/sceptics.py --quick               # a look, in some minutes
    python benchmarks/sceptics.py --only exchange,rows  # some of its sections

Sections (`--only`):

- learning: samples per second and core, held-out loss and AUC of DeepFM at minibatches of 512 and
  4,096, and the bytes that a worker sends and receives per sample.
- exchange: nanoseconds per unique id of a pull and a push of 4,000 ids, as one client sees them.
- rows: bytes of a row in memory, by dimension and storage, with the state of Adagrad.
- durability: DeepFM with checkpoints, journals and replicas.
- servers: DeepFM on 1, 2 and 4 servers.
- observers: DeepFM with metrics for Prometheus, TensorBoard and MLflow.
- staleness: how many updates were between pull and push, by `--staleness`.
- restore: how fast a server's successor has its shard again.
- quiet: what fault tolerance costs if nothing fails: rates against torch without it.

Prints a Markdown table per section. The raw figures of all runs, with the machine, are one JSON
line in benchmarks/results/sceptics.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import deepfm
import deepfm_data
import failover
import grpc
import numpy as np
import overhead
import ps_push_pull
from report import report

from torch_edl import _core
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

BATCHES = (512, 4096)
PARTS = ("plain", "local", "ours-1", "ours-8")
DURABILITY = {
    "no checkpoint": "",
    "checkpoint every 100 steps": "--checkpoint-dir {folder} --checkpoint-every 100",
    "journal, never written by force": "--durability journal --fsync never",
    "journal, written each second": "--durability journal --fsync interval",
    "journal, written at each push": "--durability journal --fsync always",
    "replica": "--durability replica",
}
OBSERVERS = {
    "none": "",
    "Prometheus, TensorBoard, MLflow": "--metrics-port {port} --tensorboard {folder}/tensorboard "
    "--observe mlflow={folder}/mlflow",
}
IDS, CALLS = 4_000, 300

Rows = list[list[str]]


class Options(argparse.Namespace):
    """The command line."""

    records: int
    repeat: int
    shard_mb: int
    only: str

    def of_job(self, **more: Any) -> argparse.Namespace:
        """Return options as of ``deepfm.py``, whose data is made where it is missing."""
        data = deepfm_data.ROOT / "build" / "benchmarks" / f"deepfm-{self.records}"
        deepfm_data.make_data(data, self.records)
        options = {"data": data, "records": self.records, "repeat": self.repeat, "lr": 0.02}
        options |= {"batch": deepfm_data.BATCH, "run_args": "", "output": None, **more}
        steps = max(self.records // options["batch"], 4 * deepfm.WARM_UP)
        return argparse.Namespace(**options, steps=steps)


def _rows_of(found: dict[str, list[dict[str, Any]]], first: str) -> Rows:
    """Return a table of medians: rate, rate of the first row, CPU, AUC."""
    median = {
        name: {
            key: statistics.median(run[key] for run in runs)
            for key in ("samples_per_s", "cpu_us_per_sample", "auc")
        }
        for name, runs in found.items()
    }
    base = next(iter(median.values()))["samples_per_s"]
    return [
        [first, "samples/s", "of the first", "CPU, us per sample", "AUC"],
        *(
            [name, f"{m['samples_per_s']:,.0f}", f"{m['samples_per_s'] / base:.2f}",
             f"{m['cpu_us_per_sample']:.1f}", f"{m['auc']:.4f}"]
            for name, m in median.items()
        ),
    ]  # fmt: skip


def _jobs(options: Options, variants: dict[str, str], first: str) -> tuple[Rows, Any]:
    """Train DeepFM with further arguments of ``torch-edl run``, in turns."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(options.repeat):
        for name, words in variants.items():
            with tempfile.TemporaryDirectory(prefix="sceptics-") as folder:
                job = options.of_job(run_args=words.format(folder=folder, port=_free_port()))
                found.setdefault(name, []).append(deepfm.run_file(job, 1))
    return _rows_of(found, first), found


def learning(options: Options) -> tuple[Rows, Any]:
    """Rates at equal data, and what was learnt."""
    table: Rows = [["batch", "", "samples per second and core", "CPU of plain", "loss", "AUC",
                    "bytes per sample"]]  # fmt: skip
    raw = {}
    for batch in BATCHES:
        found = deepfm.compare(options.of_job(batch=batch, only=",".join(PARTS)))
        raw[str(batch)] = found
        for part, median in found["medians"].items():
            cpu_us = median["cpu_us_per_sample"]
            of_plain = cpu_us / found["medians"]["plain"]["cpu_us_per_sample"]
            sent = found["bytes_per_step"].get(part)
            table.append(
                [str(batch), part, f"{1e6 / cpu_us:,.0f}", f"{of_plain:.2f}",
                 f"{median['loss']:.4f}", f"{median['auc']:.4f}",
                 f"{sent / batch:,.0f}" if sent else "0"]
            )  # fmt: skip
    return table, raw


def exchange(options: Options) -> tuple[Rows, Any]:
    """Latency of one client at one server, per unique id."""
    table: Rows = [["ids", "dim", "pull p50", "pull p99", "push p50", "push p99"]]
    raw = []
    server_command = ("-m", "torch_edl.ps_server", "--job=bench", "--shard=0", "--shards=1")
    for dim in (16, 64):
        with ps_push_pull.Process(*server_command, "--incarnation=1") as process:
            server = ps_push_pull.Server(process, dim)
            server.fill()
            for distribution in ("uniform", "zipf"):
                times = _calls(server, distribution, CALLS * options.repeat)
                points = [
                    float(np.percentile(times[call], p)) / IDS * 1e9
                    for call in ("pull", "push") for p in (50, 99)
                ]  # fmt: skip
                raw.append({"dim": dim, "distribution": distribution, "ids": IDS, "seconds": times})
                table.append([distribution, str(dim), *(f"{point:,.0f} ns" for point in points)])
            server.close()
    return table, raw


def _calls(server: ps_push_pull.Server, distribution: str, number: int) -> dict[str, list[float]]:
    """Return the seconds of each pull and push, after some to warm up."""
    rng = np.random.default_rng(0)
    batches = [ps_push_pull.draw(distribution, IDS, rng) for _ in range(8)]
    gradients = rng.standard_normal((IDS, server.dim), dtype=np.float32)
    times: dict[str, list[float]] = {"pull": [], "push": []}
    for call in range(number + 20):
        ids = batches[call % len(batches)]
        begun = time.perf_counter()
        server.pull(ids)
        pulled = time.perf_counter()
        server.push(ids, gradients)
        if call >= 20:
            times["pull"].append(pulled - begun)
            times["push"].append(time.perf_counter() - pulled)
    return times


def rows(options: Options) -> tuple[Rows, Any]:
    """Memory of a row, with its state, metadata and share of the index."""
    number = options.records // 10_000 * 10_000
    table: Rows = [["storage", "dim", "bytes per row"]]
    raw = []
    for dtype in ("fp32", "bf16", "int8"):
        for dim in (16, 64):
            kernel = _core.Optimizer("adagrad", {})
            made = _core.Table("t", dim, "normal", {"std": 0.01}, 0, kernel, dtype=dtype)
            for start in range(0, number, 10_000):
                made.pull(np.arange(start, start + 10_000, dtype=np.int64))
            raw.append({"dtype": dtype, "dim": dim, "rows": number, "bytes": made.bytes})
            table.append([dtype, str(dim), f"{made.bytes / number:.0f}"])
    return table, raw


def durability(options: Options) -> tuple[Rows, Any]:
    """What it costs that nothing, or little, is lost with a server."""
    return _jobs(options, DURABILITY, "what survives")


def servers(options: Options) -> tuple[Rows, Any]:
    """More servers, on the same machine."""
    return _jobs(options, {str(n): f"--ps {n}" for n in (1, 2, 4)}, "servers")


def observers(options: Options) -> tuple[Rows, Any]:
    """What it costs to look."""
    return _jobs(options, OBSERVERS, "observers")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def staleness(options: Options) -> tuple[Rows, Any]:
    """The age of the parameters of a gradient, in updates of its server."""
    table: Rows = [["--staleness", "mean", "p50", "p99", "0", "1", "2", "3 to 4", "more"]]
    raw = {}
    for depth in (0, 1, 3):
        with tempfile.TemporaryDirectory(prefix="sceptics-") as folder:
            os.environ["TORCH_EDL_HOME"] = folder
            try:
                found = _histogram(options, f"--staleness {depth} --job-name sceptics", folder)
            finally:
                del os.environ["TORCH_EDL_HOME"]
        counts = np.array(found["counts"], float)
        share, upto = counts / counts.sum(), np.cumsum(counts) / counts.sum()
        bounds = [*found["bounds"], float("inf")]
        points = [bounds[int(np.searchsorted(upto, p))] for p in (0.5, 0.99)]
        raw[str(depth)] = found
        table.append(
            [str(depth), f"{found['sum'] / counts.sum():.2f}", *(f"at most {p:g}" for p in points),
             *(f"{part:.1%}" for part in (*share[:4], share[4:].sum()))]
        )  # fmt: skip
    return table, raw


def _histogram(options: Options, words: str, home: str) -> dict[str, Any]:
    """Return the newest histogram of the servers of a job, summed."""
    made: list[Any] = []
    job = options.of_job(run_args=words)
    thread = threading.Thread(target=lambda: made.append(deepfm.run_file(job, 1)))
    thread.start()
    newest: dict[str, Any] = {}
    while thread.is_alive():
        thread.join(0.5)
        for status in _status(Path(home) / "jobs" / "sceptics" / "master.json"):
            found = [p.counts.staleness for p in status.processes if p.counts.staleness.counts]
            if found:
                newest = {
                    "bounds": list(found[0].bounds),
                    "counts": [sum(each) for each in zip(*(h.counts for h in found), strict=True)],
                    "sum": sum(h.sum for h in found),
                }
    if not made or not newest:
        raise SystemExit("staleness: the job failed, or was too short to be asked")
    return newest


def _status(where: Path) -> Iterator[pb.GetStatusResponse]:
    """Yield the status of a job, if its master answers."""
    try:
        master = json.loads(where.read_text(encoding="utf-8"))
        stub = Stub(services.CONTROL, master["address"], master["token"])
    except (OSError, ValueError):
        return
    try:
        yield stub.call(pb.GetStatusRequest(), timeout_s=10)
    except grpc.RpcError:
        pass
    finally:
        stub.close()


def restore(options: Options) -> tuple[Rows, Any]:
    """From the moment a server's death is noticed until its successor has the shard."""
    table: Rows = [["durability", "shard", "process and shard", "GB/s", "next step after the kill"]]
    raw: dict[str, Any] = {}
    for kind in ("journal", "replica"):
        for _ in range(options.repeat):
            with tempfile.TemporaryDirectory(prefix="sceptics-") as folder:
                made = failover.measure(Path(folder), options.shard_mb, kind)
                raw.setdefault(kind, []).append(made)
        seconds = statistics.median(run["listens_s"] - run["noticed_s"] for run in raw[kind])
        step_s = statistics.median(run["next_step_s"] for run in raw[kind])
        table.append(
            [kind, f"{options.shard_mb} MB", f"{seconds:.1f} s",
             f"{options.shard_mb / 1e3 / seconds:.2f}", f"{step_s:.1f} s"]
        )  # fmt: skip
    return table, raw


def quiet(options: Options) -> tuple[Rows, Any]:
    """Rates of jobs in which nothing fails."""
    found = overhead.compare(workers=2, repeat=options.repeat)
    return [
        ["", "rate of torch's own"],
        ["ring of two workers, against DistributedDataParallel", str(found["ring_of_ddp"])],
        ["one process, against a plain DataLoader", str(found["loader_of_plain"])],
    ], found


SECTIONS: dict[str, Callable[[Options], tuple[Rows, Any]]] = {
    each.__name__: each
    for each in (
        learning,
        exchange,
        rows,
        durability,
        servers,
        observers,
        staleness,
        restore,
        quiet,
    )
}


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Return the rows as a Markdown table; the first row has the names of the columns."""
    head, *lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([head, "|---" * len(table[0]) + "|", *lines])


def main() -> None:
    """Print one table per section, and append the raw figures to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=512_000, help="training records of DeepFM")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each point; medians count")
    parser.add_argument("--shard-mb", type=int, default=1000, help="size of a restored shard")
    parser.add_argument("--only", default=",".join(SECTIONS), help="some of the sections")
    parser.add_argument("--quick", action="store_true", help="few records, one run of each point")
    options = parser.parse_args(namespace=Options())
    unknown = [name for name in options.only.split(",") if name not in SECTIONS]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: choose from {','.join(SECTIONS)}")
    if options.quick:
        options.records, options.repeat, options.shard_mb = 102_400, 1, 100
    raw: dict[str, Any] = {}
    for name in options.only.split(","):
        load = os.getloadavg()[0]
        table, figures = SECTIONS[name](options)
        raw[name] = {"load_before": load, "figures": figures}
        print(f"\n{SECTIONS[name].__doc__}\n\n{markdown(table)}", flush=True)
    report("sceptics", raw)


if __name__ == "__main__":
    main()
