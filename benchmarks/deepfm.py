"""DeepFM: `torch-edl run` with 2 servers and 4 workers against one plain PyTorch process.

    python benchmarks/deepfm.py                    # everything, three times, some minutes
    python benchmarks/deepfm.py --quick            # a look, in two to three minutes
    python benchmarks/deepfm.py --only plain,bound
    python benchmarks/deepfm.py --only plain,local --batch 4096 --repeat 5

Prints one JSON line and appends it to benchmarks/results/deepfm.jsonl; README.md explains it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from deepfm_data import BATCH, DIM, EXAMPLE, HIDDEN, IDS, INIT_STD, ROOT, example, make_data, read
from report import report
from safetensors.torch import load_file
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.launch.jobs.local_job import LocalJob
from torch_edl.metrics import AUC
from torch_edl.wire import master_pb2 as master

SERVERS, WORKERS = 2, 4
WARM_UP = 20
PARTS = ("plain", "bound", "local", "ours-1", "ours-8", "loop")


# --- what runs in a process of its own -----------------------------------------------------------


def _plain_model() -> Any:
    """DeepFM over torch's own embeddings, as a user writes it: two tables, sparse gradients."""

    def embedding(dim: int) -> nn.Module:
        table = nn.Embedding(IDS, dim, sparse=True)
        nn.init.normal_(table.weight, 0, INIT_STD)
        return table

    return example.DeepFM(embedding, DIM, HIDDEN)


def _timed(step: Callable[[int], None], steps: int, batch: int) -> dict[str, float]:
    """Runs step(0), step(1), ...; samples and CPU seconds per sample after the warm-up."""
    for k in range(min(WARM_UP, steps)):
        step(k)
    used, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for k in range(WARM_UP, steps):
        step(k)
    wall_s = time.perf_counter() - start
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    samples = (steps - WARM_UP) * batch
    return {"samples_per_s": samples / wall_s, "cpu_us_per_sample": cpu_s / samples * 1e6}


def _held_out(model: Any, data: Path) -> dict[str, float]:
    """Loss (nats) and AUC on the held-out part."""
    (ids, dense), labels = read(data, "eval")
    auc, loss = AUC(), 0.0
    with torch.no_grad():
        for start in range(0, len(labels), 8192):
            part = slice(start, start + 8192)
            logits = model((ids[part], dense[part]))
            auc.update(labels[part], logits)
            loss += float(nn.functional.binary_cross_entropy_with_logits(
                logits, labels[part], reduction="sum"))  # fmt: skip
    return {"loss": loss / len(labels), "auc": auc.compute()}


def _train(args: argparse.Namespace, model: Any) -> dict[str, float]:
    """One process: its data decoded before the clock starts, torch's threads on all cores."""
    (ids, dense), labels = read(args.data, "train")
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    loss = nn.BCEWithLogitsLoss()

    def step(k: int) -> None:
        part = slice(k * args.batch, (k + 1) * args.batch)
        optimizer.zero_grad()
        loss(model((ids[part], dense[part])), labels[part]).backward()
        optimizer.step()

    figures = _timed(step, len(labels) // args.batch, args.batch)
    model.eval()
    return {**figures, **_held_out(model, args.data)}


def part_plain(args: argparse.Namespace) -> dict[str, float]:
    """Plain PyTorch."""
    torch.manual_seed(0)
    return _train(args, _plain_model())


def part_local(args: argparse.Namespace) -> dict[str, float]:
    """The same loop with torch-edl's tables in this process, as in the strategy ``local``."""
    from torch_edl import _core
    from torch_edl.nn import Embedding

    _core.tune_malloc()  # as in all workers of torch-edl
    torch.manual_seed(0)
    start = ("normal", {"std": INIT_STD})
    model = example.DeepFM(lambda dim: Embedding(None, dim, initializer=start), DIM, HIDDEN)
    return _train(args, model)


def part_bound(args: argparse.Namespace) -> dict[str, float]:
    """The dense computation alone: forward and backward of given rows, Adagrad on the net.

    The rows do not change, but there are 64 batches of them: a net that has learnt its only
    batch by heart has gradients so small that they are denormal, and slow.
    """
    torch.manual_seed(0)
    model = example.DeepFM(lambda _: nn.Identity(), DIM, HIDDEN)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)
    loss = nn.BCEWithLogitsLoss()
    batches = [
        (
            (torch.randn(args.batch, 26, DIM) * 0.1).requires_grad_(),
            (torch.randn(args.batch, 26, 1) * 0.1).requires_grad_(),
            torch.randn(args.batch, 13),
            (torch.rand(args.batch) < 0.3).float(),
        )
        for _ in range(64)
    ]

    def step(k: int) -> None:
        factors, weights, dense, labels = batches[k % len(batches)]
        factors.grad = weights.grad = None
        optimizer.zero_grad()
        loss(model.head(factors, weights, dense), labels).backward()
        optimizer.step()

    _timed(step, 2 * WARM_UP, args.batch)
    # Two of these run at once: both are ready before either is timed.
    print("ready", flush=True)
    sys.stdin.readline()
    return _timed(step, args.steps, args.batch)


def part_evaluate(args: argparse.Namespace) -> dict[str, float]:
    """The held-out figures of an output folder, by the same torch model as the plain part's."""
    torch.manual_seed(0)
    model = _plain_model()
    loaded = model.load_state_dict(load_file(args.output / "model.safetensors"), strict=False)
    wrong = set(loaded.unexpected_keys) | set(loaded.missing_keys) - {
        "factors.weight",
        "weights.weight",
    }
    if wrong:
        raise SystemExit(f"{args.output}/model.safetensors: {sorted(wrong)} missing or unexpected")
    with torch.no_grad():
        for name in ("factors", "weights"):
            rows = load_file(args.output / "embeddings" / f"{name}.safetensors")
            # An id that was never trained keeps its initial row, in both.
            getattr(model, name).weight[rows["ids"]] = rows["vectors"]
    return _held_out(model, args.data)


# --- what starts them ----------------------------------------------------------------------------


def _start(part: str, args: argparse.Namespace, threads: int, *more: str) -> subprocess.Popen[str]:
    environ = dict(os.environ)
    if part == "local":
        for name, value in (("OMP_WAIT_POLICY", "passive"), ("THP_MEM_ALLOC_ENABLE", "1")):
            environ.setdefault(name, value)  # as in all workers of torch-edl
    command = [sys.executable, "-W", "ignore", __file__, "--part", part, "--data", str(args.data)]
    command += ["--lr", str(args.lr), "--threads", str(threads)]
    command += ["--batch", str(args.batch), *more]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ
    )


def _result(process: subprocess.Popen[str]) -> dict[str, float]:
    out, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, process.args))}: exit {process.returncode}")  # type: ignore[arg-type]
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def run_bound(args: argparse.Namespace) -> dict[str, Any]:
    """The better of one process with a thread per core and a process with one thread per core."""
    cores = os.cpu_count() or 1
    tried = {}
    for processes, threads in ((1, cores), (cores, 1)):
        started = [
            _start("bound", args, threads, "--steps", str(args.steps // processes))
            for _ in range(processes)
        ]
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        results = [_result(process) for process in started]
        tried[f"{processes} x {threads} threads"] = {
            "samples_per_s": sum(r["samples_per_s"] for r in results),
            "cpu_us_per_sample": statistics.mean(r["cpu_us_per_sample"] for r in results),
        }
    how = max(tried, key=lambda name: tried[name]["samples_per_s"])
    return {**tried[how], "how": how}


def run_file(args: argparse.Namespace, local_steps: int) -> dict[str, Any]:
    """The example's model file: rate of the summary, from the first lease to the last record with
    no warm-up left out."""

    def command(folder: Path) -> tuple[list[str], list[str]]:
        files = map(str, sorted(args.data.glob("train-*.parquet")))
        flags = ["--strategy", "ps", "--local-steps", str(local_steps)]
        flags += ["--batch-size", str(args.batch)]
        flags += ["--data", *files, "--summary", str(folder / "summary.json")]
        options = ["--", "--dim", str(DIM), "--hidden", *map(str, HIDDEN)]
        options += ["--lr", str(args.lr), "--init-std", str(INIT_STD)]
        return [str(EXAMPLE / "model.py"), *flags], options

    def told(folder: Path) -> tuple[int, float]:
        summary = json.loads((folder / "summary.json").read_text())
        return summary["records"], summary["samples_per_s"]

    return run_ours(args, command, told)


def run_loop(args: argparse.Namespace) -> dict[str, Any]:
    """The same model in a training loop of the user's own: from the first minibatch of any worker
    to the last one of all."""

    def command(folder: Path) -> tuple[list[str], list[str]]:
        script = Path(__file__).with_name("deepfm_loop.py")
        return [], [str(script), str(args.data), str(args.lr), str(folder), str(args.batch)]

    def told(folder: Path) -> tuple[int, float]:
        parts = [json.loads(part.read_text()) for part in folder.glob("loop-*.json")]
        records = sum(part["records"] for part in parts)
        begin, end = min(part["begin"] for part in parts), max(part["end"] for part in parts)
        return records, records / (end - begin)

    return run_ours(args, command, told)


def run_ours(
    args: argparse.Namespace,
    run: Callable[[Path], tuple[list[str], list[str]]],
    told: Callable[[Path], tuple[int, float]],
) -> dict[str, Any]:
    """``torch-edl run``: its rate from the first record to the last, and the rate and the CPU of
    all its processes once all of them train.

    Args:
        run: from a folder for figures to the first and last arguments.
        told: from the folder to records, and samples per second.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output, (what, last) = folder / "model", run(folder)
        command = [sys.executable, "-m", "torch_edl.cli", "run", *what, "--job-name", folder.name]
        command += ["--ps", str(SERVERS), "--workers", str(WORKERS)]
        command += ["--output", str(output), *args.run_args.split(), *last]
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
        seen = list(_watch(process, LocalJob(folder.name)))
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
        wall_s = time.perf_counter() - began
        records, rate = told(folder)
        figures = _result(_start("evaluate", args, os.cpu_count() or 1, "--output", str(output)))
    # Workers report their records once a second, so the rates are slopes of a line through all
    # reports of the part in which every worker has warmed up and none has ended.
    steady = [each for each in seen if 0.3 <= each[2] / records <= 0.9]
    if len({done for _, _, done in steady}) < 2:
        raise SystemExit(f"--records {args.records}: the job was too short to measure; take more")
    at, cpu_s, done = np.array(steady).T
    return {
        "samples_per_s": rate,
        "steady_samples_per_s": np.polyfit(at, done, 1)[0],
        "cpu_us_per_sample": np.polyfit(done, cpu_s, 1)[0] * 1e6,
        "wall_s": wall_s,
        **figures,
    }


def _watch(process: subprocess.Popen[Any], job: LocalJob) -> Iterator[tuple[float, float, int]]:
    """(time, CPU seconds of the processes below, records of the job) until the process ends."""
    seen: dict[int, float] = {}
    root = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            for child in root.children(recursive=True):
                times = child.cpu_times()
                seen[child.pid] = times.user + times.system
            done = job.ask(master.GetStatusRequest()).records.done
        except (psutil.NoSuchProcess, UsageError):
            pass
        else:
            yield time.perf_counter(), sum(seen.values()), done
        time.sleep(0.25)


def bytes_per_step(args: argparse.Namespace, local_steps: int) -> int:
    """What a worker sends and gets per minibatch, from the data: gradients and parameters of the
    net, ids and rows of each id of a window once; messages and their headers not counted."""
    (ids, _), _ = read(args.data, "eval")
    window = args.batch * local_steps
    unique = statistics.mean(
        len(np.unique(ids[start : start + window].numpy()))
        for start in range(0, len(ids) - window + 1, window)
    )
    net = example.DeepFM(lambda _: nn.Identity(), DIM, HIDDEN)
    dense = sum(p.numel() for p in net.parameters()) * 4
    return int(2 * (dense + unique * sum(8 + 4 * dim for dim in (DIM, 1))) / local_steps)


def _ratios(rate: dict[str, float]) -> dict[str, float]:
    pairs = [(ours, to) for ours in PARTS[2:] for to in PARTS[:2]] + [("loop", "ours-1")]
    return {f"{a} / {b}": round(rate[a] / rate[b], 3) for a, b in pairs if a in rate and b in rate}


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """All wanted parts, interleaved, so that a slow minute of the machine hits each alike."""
    make_data(args.data, args.records)
    load_before = os.getloadavg()[0]
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(args.repeat):
        for part in args.only.split(","):
            kind, _, local_steps = part.partition("-")
            if kind == "ours":
                made = run_file(args, int(local_steps))
            elif kind == "loop":
                made = run_loop(args)
            elif kind == "bound":
                made = run_bound(args)
            else:
                made = _result(_start(kind, args, os.cpu_count() or 1))
            runs.setdefault(part, []).append(made)
            print(part, json.dumps(made), file=sys.stderr, flush=True)
    medians = {
        part: {
            key: round(statistics.median(r[key] for r in made), 5)
            for key, value in made[0].items()
            if isinstance(value, int | float)
        }
        for part, made in runs.items()
    }
    return {
        "load_before": load_before,
        "records": args.records,
        "lr": args.lr,
        "batch": args.batch,
        "best_possible": json.loads((args.data / "metadata.json").read_text())["eval"],
        "medians": medians,
        "ratios": _ratios({part: m["samples_per_s"] for part, m in medians.items()}),
        "bytes_per_step": {f"ours-{k}": bytes_per_step(args, k) for k in (1, 8)},
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_024_000, help="training records")
    parser.add_argument("--data", type=Path, help="folder of the data; made where it is missing")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each part; medians count")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="few records, one run")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of Adagrad")
    parser.add_argument("--batch", type=int, default=BATCH, help="minibatch size")
    parser.add_argument("--run-args", default="", help="further arguments of torch-edl run")
    hidden = [parser.add_argument(name, help=argparse.SUPPRESS)
              for name in ("--part", "--output", "--threads", "--steps")]  # fmt: skip
    for action in hidden[1:]:
        action.type = Path if action.dest == "output" else int
    args = parser.parse_args()
    unknown = set(args.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--only {','.join(unknown)}: choose from {','.join(PARTS)}")
    if args.quick:
        args.records, args.repeat = 409_600, 1
    if args.data is None:
        args.data = ROOT / "build" / "benchmarks" / f"deepfm-{args.records}"
    if args.part:
        torch.set_num_threads(args.threads)
        # As a worker on servers does: all parts compute in the same way.
        torch.set_flush_denormal(True)
        parts = (part_plain, part_local, part_bound, part_evaluate)
        part = next(each for each in parts if each.__name__ == f"part_{args.part}")
        print(json.dumps(part(args)), flush=True)
        return
    args.steps = args.steps or max(args.records // args.batch, 4 * WARM_UP)
    report("deepfm", compare(args))


if __name__ == "__main__":
    main()
