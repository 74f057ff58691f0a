"""The training script that the benchmarks of rings start: ours, or torch's own way, same model.

    ring_worker.py MODE OUT [options]

MODE: `ours` (torch_edl.init, prepare, loader; under torch-edl run or torchrun), `ddp`
(DistributedDataParallel and DistributedSampler under torchrun), `plain` (one process, DataLoader)
or `alone` (one process, torch_edl's loader). Each process appends a line to OUT/PID.jsonl when a
step is complete: the step and the time of the clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import torch_edl


class Digits:
    """Made up images and labels, each a function of its index; ready in memory."""

    def __init__(self, records: int, width: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._images = torch.randn(records, width, generator=generator)
        self._labels = torch.randint(10, (records,), generator=generator)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._images[index], self._labels[index]


def build(width: int, layers: int) -> nn.Module:
    """A perceptron of ``layers`` square layers."""
    torch.manual_seed(0)
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def main() -> None:
    """Trains, and notes each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["ours", "ddp", "plain", "alone"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-dir", default="")
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--kill-step", type=int, default=-1, help="in its backward, one dies")
    args = parser.parse_args()

    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1"))))
    dataset = Digits(20_000, args.width)
    model = build(args.width, args.layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    step = noted = 0
    job = None
    if args.mode in ("ours", "alone"):
        job = torch_edl.init(
            checkpoint_dir=args.checkpoint_dir, checkpoint_every=args.checkpoint_every
        )
        model, optimizer = job.prepare(model, optimizer)
        batches: Any = job.loader(dataset, batch_size=args.batch_size, shuffle=True, epochs=100)
    elif args.mode == "ddp":
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(dataset)
        batches = _forever(DataLoader(dataset, batch_size=args.batch_size, sampler=sampler))
    else:
        batches = _forever(DataLoader(dataset, batch_size=args.batch_size, shuffle=True))

    args.out.mkdir(parents=True, exist_ok=True)
    doomed = int(os.environ.get("RANK", "0")) == 1 and not (args.out / "killed").exists()
    if doomed and args.kill_step >= 0:
        middle = list(model.parameters())[len(list(model.parameters())) // 2]
        middle.register_post_accumulate_grad_hook(lambda _: _die(job, args.kill_step, args.out))
    with open(args.out / f"{os.getpid()}.jsonl", "a", buffering=1) as notes:
        for images, labels in batches:
            # A step is complete when the next batch comes: one that failed is taken again.
            done = step if job is None else job.step
            if done > noted:
                notes.write(json.dumps([done, time.time()]) + "\n")
                noted = done
            if done >= args.steps:
                break
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1


def _forever(loader: DataLoader[Any]) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _die(job: Any, at: int, out: Path) -> None:
    """Half of the gradients are on their way to the others."""
    if job.step == at:
        (out / "killed").write_text(json.dumps([at, time.time()]))
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
