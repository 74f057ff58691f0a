"""Records and megabytes per second of each source of files, against the bare library's reader.

    python -m benchmarks.sources [--records N] [--repeat N] [--only NAME,NAME]

One table of clicks (an id, a label, eight numbers, two texts) in every format that holds a table,
features for LibSVM, images of 20 kB for WebDataset. `ours`: the source is opened, with its index
in the cache, and read in tasks of 4,096 records (objects: 65,536), each let go before the next one;
no record is in memory before a pass. `bare`: the reader of the library does the same, with its own
batches and one thread, as ours has (of an object, each row group in a request); `_whole`: it reads
the file into one table, or the object in one request. `arrow_mapped`: nothing is read before a
column is used, so both sum all numbers and the lengths of all texts. Passes alternate, and figures
are medians; `cpu_ratio` compares the time of the processors, which other load disturbs less.
`scan_s`: the first opening, which counts the records (and unpacks what is compressed). Files are in
the page cache; objects are on moto's server, which takes a part of the same cores.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from pyarrow import csv, feather, parquet
from sklearn.datasets import load_svmlight_file

from benchmarks.report import report
from tests.s3_server import S3Server
from torch_edl.data.sources import expand, open_source
from torch_edl.data.sources.files.recordio import RecordIOWriter
from torch_edl.plugins.formats.tfrecord import TFRecordWriter

TASK = 4096
PER_GROUP = 8192
FAR_TASK = 65536
"""Of objects, and rows of their row groups: a request takes long, whatever it asks for."""


@dataclass(frozen=True)
class Format:
    """A source, and what reads it otherwise."""

    file: str
    write: Callable[[Path], None]
    bare: Callable[[str], int] | None
    """Reads a file, and returns how many records; None: there is no library in Python."""
    use: Callable[[Any], int] = len
    """Function that uses the records of a task and returns their number."""

    @property
    def task(self) -> int:
        """Records of a task."""
        return FAR_TASK if "://" in self.file else TASK


def clicks(records: int) -> Any:
    chance = np.random.default_rng(0)
    numbers = {f"x{i}": chance.random(records) for i in range(8)}
    return pa.table(
        {
            "id": chance.integers(0, 1 << 40, records),
            "label": chance.integers(0, 2, records),
            **numbers,
            "site": [f"site-{n}" for n in chance.integers(0, 1000, records)],
            "query": [f"words of a query {n}" for n in chance.integers(0, 1 << 30, records)],
        }
    )


def formats(table: Any) -> dict[str, Format]:
    rows = len(table)
    text = io.BytesIO()
    for row in table.to_pylist():
        text.write(json.dumps(row).encode() + b"\n")
    lines = text.getvalue()
    texts = lines.splitlines()

    def recordio(path: Path) -> None:
        with RecordIOWriter(path) as writer:
            for line in texts:
                writer.write(line)

    def tfrecord(path: Path) -> None:
        with TFRecordWriter(path) as writer:
            for line in texts:
                writer.write(line)

    def libsvm(path: Path) -> None:
        chance = np.random.default_rng(0)
        with open(path, "w") as file:
            for _ in range(rows // 4):
                index = np.sort(chance.choice(100_000, 40, replace=False))
                pairs = zip(index.tolist(), chance.random(40).tolist(), strict=True)
                file.write("1 " + " ".join(f"{i}:{x:.6g}" for i, x in pairs) + "\n")

    def tar(path: Path) -> None:
        chance = np.random.default_rng(0)
        with tarfile.open(path, "w") as archive:
            for number in range(rows // 40):
                for name, size in (("jpg", 20_000), ("cls", 2)):
                    member = tarfile.TarInfo(f"{number:06d}.{name}")
                    member.size = size
                    archive.addfile(member, io.BytesIO(chance.bytes(size)))

    def avro(path: Path) -> None:
        kinds = {"int64": "long", "double": "double", "string": "string"}
        fields = [{"name": f.name, "type": kinds[str(f.type)]} for f in table.schema]
        schema = {"type": "record", "name": "click", "fields": fields}
        with open(path, "wb") as file:
            fastavro.writer(file, schema, table.to_pylist(), codec="deflate")

    def arrow(compression: str | None) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            feather.write_feather(table, path, compression=compression, chunksize=PER_GROUP)

        return write

    return {
        "recordio": Format("a.recordio", recordio, None),
        "tfrecord": Format("a.tfrecord", tfrecord, None),
        "csv": Format("a.csv", lambda path: csv.write_csv(table, path), bare_csv),
        "csv_whole": Format("b.csv", lambda path: csv.write_csv(table, path), bare_csv_whole),
        "parquet": Format(
            "a.parquet",
            lambda path: parquet.write_table(table, path, row_group_size=PER_GROUP),
            bare_parquet,
        ),
        "parquet_whole": Format(
            "b.parquet",
            lambda path: parquet.write_table(table, path, row_group_size=PER_GROUP),
            bare_parquet_whole,
        ),
        "arrow": Format("a.arrow", arrow("uncompressed"), bare_arrow),
        "arrow_whole": Format("b.arrow", arrow("uncompressed"), bare_arrow_whole),
        "arrow_mapped": Format("c.arrow", arrow("uncompressed"), bare_arrow_mapped, summed),
        "feather_lz4": Format("a.feather", arrow("lz4"), bare_arrow),
        "feather_lz4_whole": Format("b.feather", arrow("lz4"), bare_arrow_whole),
        "dataset": Format("set", lambda path: save_dataset(table, path), bare_dataset),
        "jsonl": Format("a.jsonl", lambda path: _write(path, lines), bare_json),
        "jsonl_gz": Format(
            "a.jsonl.gz", lambda path: _write(path, gzip.compress(lines, 6)), bare_json
        ),
        "libsvm": Format("a.libsvm", libsvm, bare_libsvm),
        "webdataset": Format("a.tar", tar, bare_tar),
        "avro": Format("a.avro", avro, bare_avro),
        "avro_dicts": Format("b.avro", avro, bare_avro_dicts),
        "s3_parquet": Format(
            "s3://bench/a.parquet",
            lambda path: parquet.write_table(table, path, row_group_size=FAR_TASK),
            bare_parquet_object,
        ),
        "s3_parquet_whole": Format(
            "s3://bench/b.parquet",
            lambda path: parquet.write_table(table, path, row_group_size=FAR_TASK),
            bare_parquet_object_whole,
        ),
        "s3_csv_whole": Format(
            "s3://bench/a.csv", lambda path: csv.write_csv(table, path), bare_csv_object_whole
        ),
    }


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def save_dataset(table: Any, path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(table).save_to_disk(path)


# ---- bare readers ----

_ONE_THREAD = csv.ReadOptions(use_threads=False)


def bare_csv(path: str) -> int:
    with csv.open_csv(path, read_options=_ONE_THREAD) as batches:
        return sum(len(batch) for batch in batches)


def bare_csv_whole(path: str) -> int:
    return len(csv.read_csv(path, read_options=_ONE_THREAD))


def bare_parquet(path: str) -> int:
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        return sum(len(batch) for batch in file.iter_batches(TASK, use_threads=False))


def bare_parquet_whole(path: str) -> int:
    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        return len(file.read(use_threads=False))


_ARROW_ALONE = pa.ipc.IpcReadOptions(use_threads=False)


def bare_arrow(path: str) -> int:
    with pa.OSFile(path) as file:
        opened = pa.ipc.open_file(file, options=_ARROW_ALONE)
        return sum(len(opened.get_batch(i)) for i in range(opened.num_record_batches))


def bare_arrow_whole(path: str) -> int:
    with pa.OSFile(path) as file:
        return len(pa.ipc.open_file(file, options=_ARROW_ALONE).read_all())


def bare_arrow_mapped(path: str) -> int:
    with pa.memory_map(path) as file:
        opened = pa.ipc.open_file(file, options=_ARROW_ALONE)
        batches = map(opened.get_batch, range(opened.num_record_batches))
        return sum(
            summed(batch.slice(start, TASK))
            for batch in batches
            for start in range(0, PER_GROUP, TASK)
        )


def summed(records: Any) -> int:
    for column in records.columns:
        pc.sum(pc.binary_length(column) if pa.types.is_string(column.type) else column)
    return len(records)


def bare_dataset(path: str) -> int:
    import datasets

    opened = datasets.load_from_disk(path).with_format("arrow")
    return sum(len(opened[start : start + TASK]) for start in range(0, len(opened), TASK))


def bare_json(path: str) -> int:
    with pa.input_stream(path) as stream:
        return len(pa.json.read_json(stream, pa.json.ReadOptions(use_threads=False)))


def bare_libsvm(path: str) -> int:
    return int(load_svmlight_file(path)[0].shape[0])


def bare_tar(path: str) -> int:
    samples: list[dict[str, bytes]] = []
    last = None
    with tarfile.open(path, "r|") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # as the library webdataset does
            key, _, extension = member.name.partition(".")
            if key != last:
                last = key
                samples.append({})
            content = archive.extractfile(member)
            assert content is not None
            samples[-1][extension] = content.read()
    return len(samples)


def bare_avro_dicts(path: str) -> int:
    with open(path, "rb") as file:
        return sum(1 for _ in fastavro.reader(file))


def bare_avro(path: str) -> int:
    rows = 0
    with open(path, "rb") as file:
        for block in fastavro.block_reader(file):
            rows += len(pa.Table.from_pylist(list(block)))
    return rows


def bare_parquet_object(url: str) -> int:
    system, path = fsspec.core.url_to_fs(url)
    with system.open(path, cache_type="none") as file:
        opened = parquet.ParquetFile(file, pre_buffer=True)
        groups = range(opened.num_row_groups)
        return sum(len(opened.read_row_group(group, use_threads=False)) for group in groups)


def bare_parquet_object_whole(url: str) -> int:
    with fsspec.open(url) as file, parquet.ParquetFile(file) as opened:
        return sum(len(batch) for batch in opened.iter_batches(TASK, use_threads=False))


def bare_csv_object_whole(url: str) -> int:
    with fsspec.open(url) as file:
        return len(csv.read_csv(file, read_options=_ONE_THREAD))


# ---- the measurement ----


def ours(files: list[str], task: int = TASK, use: Callable[[Any], int] = len) -> int:
    rows = 0
    for file in files:
        source = open_source(file)
        for start in range(0, source.count, task):
            rows += use(source.read(start, min(start + task, source.count)))
    return rows


@dataclass(frozen=True)
class Pass:
    """One pass over the data: seconds on the clock and of processors, and the records."""

    wall_s: float
    cpu_s: float
    records: int


def timed(read: Callable[[], int]) -> Pass:
    wall, cpu = time.perf_counter(), time.process_time()
    records = read()
    return Pass(time.perf_counter() - wall, time.process_time() - cpu, records)


def placed(each: Format, folder: Path) -> tuple[str, list[str], int]:
    """Writes the data: their name, the files of it, and their bytes."""
    if "://" not in each.file:
        path = folder / each.file
        each.write(path)
        files = expand([str(path)])
        return str(path), files, sum(os.path.getsize(file) for file in files)
    local = folder / "object"
    each.write(local)
    fsspec.filesystem("s3").put(str(local), each.file)
    return each.file, [each.file], local.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="names of formats, separated by commas")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TORCH_EDL_HOME"] = str(folder / "home")
        server = S3Server(folder)
        os.environ.update(server.environment)
        fsspec.filesystem("s3").mkdir("bench")
        wanted = formats(clicks(args.records))
        only = args.only.split(",") if args.only else list(wanted)
        try:
            figures = measure({name: wanted[name] for name in only}, folder, args.repeat)
        finally:
            server.kill()
    report("sources", {"records": args.records, "task": TASK, "formats": figures})


def measure(wanted: dict[str, Format], folder: Path, repeat: int) -> dict[str, Any]:
    places = {name: placed(each, folder) for name, each in wanted.items()}
    figures: dict[str, dict[str, Any]] = {}
    passes: dict[str, tuple[list[Pass], list[Pass]]] = {name: ([], []) for name in wanted}
    for name, (_, files, _) in places.items():
        scan = timed(lambda files=files: sum(open_source(file).count for file in files))
        figures[name] = {"scan_s": round(scan.wall_s, 3)}
    for _ in range(repeat):
        for name, each in wanted.items():
            path, files, _ = places[name]
            mine, others = passes[name]
            mine.append(timed(lambda files=files, each=each: ours(files, each.task, each.use)))
            if each.bare is not None:
                others.append(timed(lambda bare=each.bare, path=path: bare(path)))
                assert others[-1].records == mine[-1].records, name
    for name, (mine, others) in passes.items():
        size, records = places[name][2], mine[0].records
        median_s = statistics.median(each.wall_s for each in mine)
        figures[name] |= {
            "records": records,
            "megabytes": round(size / 1e6, 1),
            "records_per_s": round(records / median_s),
            "megabytes_per_s": round(size / median_s / 1e6, 1),
        }
        if others:
            bare_s = statistics.median(each.wall_s for each in others)
            cpu_s = statistics.median(each.cpu_s for each in mine)
            bare_cpu_s = statistics.median(each.cpu_s for each in others)
            figures[name] |= {
                "bare_records_per_s": round(records / bare_s),
                "ratio": round(bare_s / median_s, 2),
                "cpu_ratio": round(bare_cpu_s / cpu_s, 2),
            }
    return figures


if __name__ == "__main__":
    main()
