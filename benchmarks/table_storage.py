"""Tables larger than memory: rows on a disk against rows in memory, RocksDB and LMDB.

    python -m benchmarks.table_storage core      # pulls and pushes of one table, some minutes
    python -m benchmarks.table_storage job       # a training job
    python -m benchmarks.table_storage           # both

Ids follow Zipf's law (1.2). The table has rows of 64 numbers with the state of Adam, 768 bytes.
Before the measurement, each id gets its row, in the order in which ids appear. Limited parts run in
a memory cgroup with a third of the table's size, for which root and a memory controller of cgroup
v1 are needed. RocksDB and LMDB are measured if `pip install rocksdict lmdb` was run; they read and
write the bytes of rows, without the optimizer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.report import ROOT, report

BATCH, IDS, DIM = 512, 26, 64
ROW = 3 * 4 * DIM
ZIPF = 1.2
GROUPS = Path("/sys/fs/cgroup/memory")
Ids = npt.NDArray[np.int64]


class Zipf:
    """Ids below ``rows``, whose frequencies follow Zipf's law."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._chance = np.arange(1, rows + 1) ** -ZIPF
        self._sums = np.cumsum(self._chance / self._chance.sum())
        self._id_of_rank = np.random.default_rng(1).permutation(rows)

    def draw(self, n: int) -> Ids:
        ranks = np.searchsorted(self._sums, self._rng.random(n))
        return self._id_of_rank[np.minimum(ranks, len(self._sums) - 1)]

    def by_appearance(self) -> Ids:
        """All ids in the order in which they first appear."""
        arrivals = self._rng.exponential(size=len(self._chance)) / self._chance
        return self._id_of_rank[np.argsort(arrivals)]


@contextmanager
def limited(size: int) -> Iterator[Callable[[int], None]]:
    """A memory cgroup of ``size`` bytes, as a function that adds a process; 0 for no limit."""
    if not size:
        yield lambda pid: None
        return
    group = GROUPS / f"table-storage-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(size))
    try:
        yield lambda pid: void((group / "cgroup.procs").write_text(str(pid)))
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (GROUPS / "cgroup.procs").write_text(pid)
        group.rmdir()


def void(_: object) -> None:
    """Drop a value."""


# --- one table ------------------------------------------------------------------------------------


class CoreTable:
    def __init__(self, folder: str) -> None:
        from torch_edl import _core

        self._table = _core.Table(
            "t", DIM, "zeros", {}, 0, _core.Optimizer("adam", {}), folder=folder
        )
        self._step = 0

    def load(self, ids: Ids) -> None:
        values = np.ones((len(ids), DIM), np.float32)
        self._table.load(ids, values, np.ones((len(ids), 2, DIM), np.float32))

    def pull(self, ids: Ids) -> object:
        return self._table.pull(ids)

    def push(self, ids: Ids, rows: object) -> None:
        self._step += 1
        self._table.push(ids, np.full((len(ids), DIM), 1e-3, np.float32), 1e-3, self._step)

    def snapshot(self) -> None:
        self._table.begin_snapshot()
        while self._table.next_chunk(4096) is not None:
            pass
        self._table.end_snapshot()

    @property
    def size(self) -> int:
        return self._table.bytes


class RocksTable:
    """No log and no compression. The cache of blocks is a third of the limit, and two write buffers
    a quarter; the kernel's page cache has the rest."""

    def __init__(self, folder: str, limit: int) -> None:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        options.increase_parallelism(2)
        options.set_write_buffer_size(limit // 8)
        options.set_max_write_buffer_number(2)
        blocks = rocksdict.BlockBasedOptions()
        blocks.set_block_cache(rocksdict.Cache(limit // 3))
        blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        self._batch = rocksdict.WriteBatch
        self._db = rocksdict.Rdict(folder, options)
        quick = rocksdict.WriteOptions()
        quick.disable_wal = True
        self._db.set_write_options(quick)

    def load(self, ids: Ids) -> None:
        self.push(ids, [bytes(ROW)] * len(ids))

    def pull(self, ids: Ids) -> Any:
        return self._db[[each.tobytes() for each in ids]]

    def push(self, ids: Ids, rows: Any) -> None:
        batch = self._batch(raw_mode=True)
        for each, row in zip(ids, rows, strict=True):
            batch.put(each.tobytes(), row)
        self._db.write(batch)


class LmdbTable:
    """A mapped file, written in place and without waiting for the disk."""

    def __init__(self, folder: str) -> None:
        import lmdb

        self._env = lmdb.open(
            folder, map_size=1 << 40, writemap=True, map_async=True, sync=False, readahead=False
        )

    def load(self, ids: Ids) -> None:
        self.push(ids, [bytes(ROW)] * len(ids))

    def pull(self, ids: Ids) -> Any:
        with self._env.begin() as reading:
            return [reading.get(each.tobytes()) for each in ids]

    def push(self, ids: Ids, rows: Any) -> None:
        with self._env.begin(write=True) as writing:
            for each, row in zip(ids, rows, strict=True):
                writing.put(each.tobytes(), row)


def _disk_io() -> dict[str, int]:
    """Bytes that this process read from disks, and pages that it made dirty, in bytes."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    found = dict(line.split(": ") for line in lines)
    return {"read": int(found["read_bytes"]), "dirtied": int(found["write_bytes"])}


def measure(part: str, rows: int, limit: int, seconds: float) -> dict[str, Any]:
    """Measure one part in this process."""
    zipf = Zipf(rows)
    with tempfile.TemporaryDirectory() as folder, limited(limit) as join:
        join(os.getpid())
        tables: dict[str, Callable[[], Any]] = {
            "memory": lambda: CoreTable(""),
            "disk": lambda: CoreTable(folder),
            "rocksdb": lambda: RocksTable(folder, limit),
            "lmdb": lambda: LmdbTable(folder),
        }
        table = tables[part]()
        order = zipf.by_appearance()
        for start in range(0, rows, 4096):
            table.load(order[start : start + 4096])
        figures: dict[str, Any] = {}
        for _phase in ("warm-up", "measured"):
            pull_s = push_s = 0.0
            ids = batches = 0
            io, used = _disk_io(), resource.getrusage(resource.RUSAGE_SELF)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                unique = np.unique(zipf.draw(BATCH * IDS))
                began = time.perf_counter()
                values = table.pull(unique)
                pulled = time.perf_counter()
                table.push(unique, values)
                pull_s += pulled - began
                push_s += time.perf_counter() - pulled
                ids += len(unique)
                batches += 1
            now = resource.getrusage(resource.RUSAGE_SELF)
            figures = {
                "ids_per_batch": round(ids / batches),
                "pull_ns_per_id": round(pull_s / ids * 1e9),
                "push_ns_per_id": round(push_s / ids * 1e9),
                "batches_per_s": round(batches / (pull_s + push_s), 1),
                **{f"{k}_bytes_per_id": round((v - io[k]) / ids) for k, v in _disk_io().items()},
                "major_faults_per_batch": round((now.ru_majflt - used.ru_majflt) / batches, 1),
            }
        if part in ("memory", "disk"):
            began = time.perf_counter()
            table.snapshot()
            figures["snapshot_s"] = round(time.perf_counter() - began, 2)
            figures["table_mb"] = round(table.size / 1e6)
        del table
    return figures


def core(rows: int, seconds: float, parts: list[str], repeat: int) -> None:
    """Measure one table in all parts, each in a process of its own."""
    # Index and metadata: 47 to 70 bytes per row.
    third = rows * (ROW + 60) // 3
    every = {
        "memory": ("memory", 0),
        "disk, all in memory": ("disk", 0),
        "disk, a third in memory": ("disk", third),
        "rocksdb, a third in memory": ("rocksdb", third),
        "lmdb, a third in memory": ("lmdb", third),
    }
    modules = {"rocksdb": "rocksdict", "lmdb": "lmdb"}
    chosen = {
        name: (part, limit)
        for name, (part, limit) in every.items()
        if (not parts or part in parts)
        and (part not in modules or importlib.util.find_spec(modules[part]))
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    load = os.getloadavg()[0]
    for _ in range(repeat):
        for name, (part, limit) in chosen.items():
            words = ["--part", part, "--limit", str(limit), "--rows", str(rows)]
            words += ["--seconds", str(seconds)]
            command = [sys.executable, "-m", "benchmarks.table_storage", *words]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
            runs[name].append(json.loads(done.stdout))
    figures = {
        name: {key: statistics.median(run[key] for run in each) for key in each[0]}
        for name, each in runs.items()
    }
    setting = {"rows": rows, "row_bytes": ROW, "limit_mb": round(third / 1e6), "repeat": repeat}
    report("table_storage", {"core": figures, **setting, "load_before": load})


# --- a job ----------------------------------------------------------------------------------------


def write_data(folder: Path, rows: int, records: int) -> int:
    """Write records that contain every id once, and then ``records`` of drawn ids. Return the
    number of the first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    zipf = Zipf(rows)
    first = zipf.by_appearance()
    first = first[: len(first) // (IDS * BATCH) * IDS * BATCH]
    ids = np.concatenate([first, zipf.draw(records * IDS)])
    labels = np.random.default_rng(2).integers(0, 2, len(ids) // IDS).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(ids), IDS)
    pq.write_table(pa.table({"ids": lists, "label": labels}), folder / "data.parquet")
    return len(first) // IDS


def train(folder: Path, storage: str, limit: int, before: int, words: list[str]) -> dict[str, Any]:
    """Train one epoch. Return the figures after the first ``before`` records."""
    with tempfile.TemporaryDirectory(dir=folder) as name, limited(limit) as join:
        times = Path(name) / "times"
        home = Path(name) / "home"
        model = ROOT / "benchmarks" / "table_storage_model.py"
        command = [
            sys.executable, "-m", "torch_edl.cli", "run", str(model),
            "--data", str(folder / "data.parquet"), "--no-shuffle", "--ps", "1", "--workers", "1",
            "--batch-size", str(BATCH), "--staleness", "1", *words,
            "--", storage, str(times),
        ]  # fmt: skip
        env = {**os.environ, "TORCH_EDL_HOME": str(home)}
        with subprocess.Popen(command, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True) as job:
            server = None
            while server is None and job.poll() is None:
                server = next(filter(_is_server_of(home), psutil.process_iter()), None)
                time.sleep(0.02)
            if server is not None:
                join(server.pid)
            peak = 0
            while job.poll() is None:
                if limit:
                    peak = max(peak, _usage())
                time.sleep(0.5)
            assert job.stderr is not None
            if job.returncode:
                raise SystemExit(job.stderr.read())
        at = [float(line) for line in times.read_text(encoding="ascii").split()]
    at = at[before // BATCH + 20 :]
    rate = BATCH * (len(at) - 1) / (at[-1] - at[0])
    return {"records_per_s": round(rate), **({"peak_mb": round(peak / 1e6)} if limit else {})}


def _usage() -> int:
    (group,) = GROUPS.glob(f"table-storage-{os.getpid()}")
    return int((group / "memory.usage_in_bytes").read_text())


def _is_server_of(home: Path) -> Callable[[psutil.Process], bool]:
    def matches(process: psutil.Process) -> bool:
        try:
            own = process.environ().get("TORCH_EDL_HOME") == str(home)
            return own and "torch_edl.ps_server" in process.cmdline()
        except psutil.Error:
            return False

    return matches


def job(rows: int, records: int, repeat: int, words: list[str]) -> None:
    """Train with the table in memory and on a disk, in turns."""
    third = rows * (ROW + 60) // 3
    load = os.getloadavg()[0]
    runs: dict[str, list[dict[str, Any]]] = {"memory": [], "disk, a third in memory": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = write_data(folder, rows, records)
        for _ in range(repeat):
            runs["memory"].append(train(folder, "memory", 0, before, words))
            storage = f"disk:{folder}"
            runs["disk, a third in memory"].append(train(folder, storage, third, before, words))
    rates = {part: [run["records_per_s"] for run in made] for part, made in runs.items()}
    memory, disk = (statistics.median(made) for made in rates.values())
    setting = {"rows": rows, "records": records, "limit_mb": round(third / 1e6), "words": words}
    figures = {"job": runs, "ratio": round(disk / memory, 3)}
    report("table_storage", {**figures, **setting, "load_before": load})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["core", "job", []])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=100_000, help="measured records of a job")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], help="memory, disk, rocksdb, lmdb")
    parser.add_argument("--run-args", default="", help="more options of torch-edl run")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        figures = measure(args.part, args.rows, args.limit, args.seconds)
        sys.stdout.write(json.dumps(figures))
        return
    if not args.what or "core" in args.what:
        core(args.rows, args.seconds, args.only, args.repeat)
    if not args.what or "job" in args.what:
        job(args.rows, args.records, args.repeat, args.run_args.split())


if __name__ == "__main__":
    main()
