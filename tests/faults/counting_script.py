"""Counts records in a training loop of the user's own, and dies where a plan says so.

Each record has a weight, and each update adds 1 to the weights of its records, so a weight that
is not the number of epochs names a record that was lost or repeated.

The gradient of an update is the sum over members of (their records / T) times theirs, with T the
records of the whole update. With ``--global-batch T`` the script knows T and scales its loss by
it: plain SGD of rate 1 counts. For T = 24 and 1 to 4 members all factors are exact in float32
(24/n times n/24 is 1.0 for n = 24, 12, 8, 6, 4). Without it T changes with the ring, and an
optimizer that divides by the smallest gradient counts instead; it rounds, since the members'
shares are not exact then. What is in one update twice counts 2 either way.

What it tells: ``steps-PID`` has a line ``rank world step time`` for each batch, ``log-PID`` its
log, ``counts-PID.json`` what it counted when it came to its end.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

import torch_edl

_DENSE = 200_000
_SLOW_S = 2.0


class Deaths:
    """What happens to this process by its own hand: phases of a step that no timing hits.

    Each of ``deaths.json`` happens once in a job, to whoever is there first after some member has
    begun its step.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        file = folder / "deaths.json"
        self._deaths: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
        self._rank = -1

    def begin(self, rank: int, step: int) -> None:
        """This process begins a step."""
        self._rank = rank
        for number, death in enumerate(self._deaths):
            if step >= death["step"] > 0:
                (self._folder / f"due-{number}").touch()

    def reach(self, phase: str) -> None:
        """This process is in a phase."""
        for number, death in enumerate(self._deaths):
            if death["phase"] != phase or death["rank"] not in (None, self._rank):
                continue
            if death["step"] and not (self._folder / f"due-{number}").exists():
                continue
            try:
                hit = os.open(self._folder / f"hit-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                continue
            os.write(hit, str(os.getpid()).encode())
            os.close(hit)
            logging.info("%s: signal %d in %d ms", phase, death["signal"], death["delay_ms"])
            arguments = (os.getpid(), death["signal"])
            if death["delay_ms"]:
                threading.Timer(death["delay_ms"] / 1000, os.kill, arguments).start()
            else:
                os.kill(*arguments)


class Count(nn.Module):
    """Gives the loss of a minibatch of record numbers."""

    def __init__(self, records: int, deaths: Deaths) -> None:
        super().__init__()
        self.records = nn.Parameter(torch.zeros(records))
        self.rows = nn.Embedding(records, 2)
        self.updates = nn.Parameter(torch.zeros(3))
        self.dense = nn.Parameter(torch.zeros(_DENSE))
        nn.init.zeros_(self.rows.weight)
        # Beside the counts, with an optimizer that has a state: it must be the same everywhere.
        self.guess = nn.Parameter(torch.zeros(8))
        self._deaths = deaths

    def forward(self, numbers: torch.Tensor, scale: float) -> torch.Tensor:
        self._deaths.reach("forward")
        each = self.records[numbers] + self.rows(numbers).sum(1) + self._dying(self.dense)[:1]
        error = (numbers.float().mean() / len(self.records) - self.guess).pow(2).sum()
        return -each.mean() * scale - self.updates.sum() + error

    def _dying(self, parameter: torch.Tensor) -> torch.Tensor:
        through = parameter * 1.0
        through.register_hook(lambda _: self._deaths.reach("backward"))
        return through


class CountAnySize(torch.optim.Optimizer):
    """SGD for means over an unknown number of records."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.any():
                    p -= (p.grad / p.grad[p.grad != 0].abs().min()).round()


def dying_optimizer(kind: type[torch.optim.Optimizer], deaths: Deaths) -> Any:
    """An optimizer that dies where a ring asks it for its state, or gives it another."""

    class Dying(kind):  # type: ignore[valid-type,misc]
        def state_dict(self) -> dict[str, Any]:
            deaths.reach("giving")
            return super().state_dict()  # type: ignore[no-any-return]

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            deaths.reach("taking")

    return Dying


class Numbers(Dataset[int]):
    def __init__(self, records: int) -> None:
        self._records = records

    def __len__(self) -> int:
        return self._records

    def __getitem__(self, number: int) -> int:
        return number


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--global-batch", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    args = parser.parse_args()
    folder, pid = args.folder, os.getpid()
    logging.basicConfig(
        filename=folder / f"log-{pid}",
        level=logging.INFO,
        format="%(created).3f %(message)s",
    )
    deaths = Deaths(folder)
    deaths.reach("start")
    torch.manual_seed(0)
    job = torch_edl.init(check_every=1)
    deaths.reach("registered")
    model = Count(args.records, deaths)
    counting = [p for name, p in model.named_parameters() if name not in ("guess", "updates")]
    scale = float(args.global_batch or 1)
    if args.global_batch:
        count: Any = dying_optimizer(torch.optim.SGD, deaths)(counting, lr=1.0)
    else:
        count = dying_optimizer(CountAnySize, deaths)(counting)
    updates = torch.optim.SGD([model.updates], lr=1.0)
    adam = dying_optimizer(torch.optim.Adam, deaths)([model.guess], lr=0.01)
    count.register_step_post_hook(lambda *_: deaths.reach("optimizer"))
    optimizers = [count, updates, adam]
    job.prepare(model, optimizers)
    steps = os.open(folder / f"steps-{pid}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    loader = job.loader(
        Numbers(args.records),
        batch_size=8,
        epochs=args.epochs,
        shuffle=True,
        global_batch_size=args.global_batch,
    )
    for numbers in loader:
        if job.late:
            deaths.reach("rehearsal")
        else:
            os.write(steps, f"{job.rank} {job.world_size} {job.step} {time.time():.3f}\n".encode())
            deaths.begin(job.rank, job.step)
            # The sleep is the computation of a larger model; a test that waits for somebody to
            # join wants more of it, lest the job ends before.
            time.sleep(args.delay)
            until = time.monotonic() + _SLOW_S
            while (folder / "slow").exists() and time.monotonic() < until:
                time.sleep(args.delay)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(numbers, scale)
        loss.backward()
        deaths.reach("reduced")
        for optimizer in optimizers:
            optimizer.step()
        deaths.reach("stepped")
        job.log(loss=loss)
    deaths.reach("end")
    tell(folder, job, model, args.epochs)
    job.close()


def tell(folder: Path, job: Any, model: Count, epochs: int) -> None:
    counts, rows = model.records.detach(), model.rows.weight.detach()
    wrong = (counts != epochs) | (rows != epochs).any(1)
    digest = 0
    for parameter in model.parameters():
        digest = zlib.crc32(parameter.detach().numpy().tobytes(), digest)
    told = {
        "pid": os.getpid(),
        "rank": job.rank,
        "world": job.world_size,
        "step": job.step,
        "updates": model.updates.tolist(),
        "wrong": {n: counts[n].item() for n in wrong.nonzero().flatten().tolist()},
        "digest": digest,
    }
    part = folder / f"counts-{os.getpid()}.part"
    part.write_text(json.dumps(told))
    os.replace(part, folder / f"counts-{os.getpid()}.json")
    assert not wrong.any(), told["wrong"]
    if job.is_main:
        torch.save(model.state_dict(), folder / "model.pt")


if __name__ == "__main__":
    main()
