"""The folder of a simulated job, as a master and a recorder leave it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.events import (
    Event,
    JobFinished,
    ModelEvaluated,
    ProcessChanged,
    ServersReady,
    WorkerLost,
)
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.wire import event_messages

START = 1_800_000_000.0
"""Unix time at which the job began, in seconds."""


def _process(role: str, id: int, state: str, exit: str = "") -> dict[str, Any]:
    return {
        "role": role, "id": id, "pid": 1000 + id, "state": state, "exit": exit, "address": "",
        "died": False, "log": "", "problem": "", "kept": False, "expendable": False,
    }  # fmt: skip


class SimulatedJob:
    """A training of ``seconds`` that has finished, in whose middle workers died.

    Args:
        workers: number of workers at a time.
        deaths: number of workers that died and were replaced, one after another.
        events: number of all events.
    """

    def __init__(
        self,
        name: str,
        *,
        workers: int = 4,
        servers: int = 2,
        deaths: int = 1,
        events: int = 50,
        seconds: int = 600,
    ) -> None:
        self.folder = JobFolder(name)
        self.folder.logs.mkdir(parents=True)
        self.folder.config_file.write_text(JobConfig(name=name, model_file="model.py").to_json())
        self.sequence = 0
        """Number of the newest event."""
        self._random = random.Random(0)
        self.processes = [_process("master", 0, "running")]
        self.processes += [_process("ps", each, "running") for each in range(servers)]
        self.processes += [_process("worker", each, "running") for each in range(workers)]
        history: list[dict[str, Any]] = [{"kind": "begin", "interval_s": 1.0}]
        lines = [self._change(p, 1) for p in self.processes]
        lines.append(self.event(2, ServersReady(count=servers)))
        for death in range(deaths):
            at = 5 + (seconds - 10) * death / deaths
            dead = self.processes[1 + servers + death]
            dead.update(state="exited", exit="signal 9", died=True)
            new = _process("worker", workers + death, "running")
            self.processes.append(new)
            lost = WorkerLost(process=f"worker-{dead['id']}", way="ended", cause="signal 9")
            lines += [self._change(dead, at), self.event(at, lost), self._change(new, at + 2)]
        for step in range(events - deaths - 2):
            lines.append(self._evaluation(2 + (seconds - 3) * step / events, step))
        lines.append(self.event(seconds, JobFinished()))
        history += [self._scalars(at) for at in range(2, seconds)]
        (self.folder.dir / "history.jsonl").write_text("".join(history_line(h) for h in history))
        self.folder.events_file.write_text("".join(lines))
        for process in self.processes:
            if process["state"] != "exited":
                process.update(state="exited", exit="exit code 0")
        self.write_status(state="finished", steps=10 * seconds, wall_s=seconds - 2.0)

    def _change(self, process: dict[str, Any], at: float) -> str:
        named = {name: process[name] for name in ("pid", "state", "exit", "died")}
        name = f"{process['role']}-{process['id']}"
        return self.event(at, ProcessChanged(process=name, **named))

    def _scalars(self, at: int) -> dict[str, Any]:
        noise = self._random.random()
        values = {
            "train/loss": 2 * math.exp(-at / 200) + 0.05 * noise,
            "train/workers": 4.0,
            "rate/records_per_s": 9000 + 1000 * noise,
            "rate/steps_per_s": 10.0,
        }
        return {"kind": "scalars", "time": START + at, "step": 10 * at, "values": values}

    def _evaluation(self, at: float, step: int) -> str:
        return self.event(at, ModelEvaluated(steps=step, metrics={"accuracy": 0.9}))

    def event(self, at: float, event: Event) -> str:
        """Return the line of an event ``at`` seconds after the start."""
        self.sequence += 1
        message = event_messages.to_message(event, self.sequence, START + at)
        return f"{event_messages.to_line(message)}\n"

    def append(self, *lines: str) -> None:
        """Append lines of :meth:`event` to the events of the job."""
        with open(self.folder.events_file, "a") as file:
            file.write("".join(lines))

    def write_status(self, **fields: Any) -> None:
        """Write the last status of the job; ``fields`` replace values."""
        status = {
            "job": self.folder.name, "kind": "train", "strategy": "ps", "reason": "", "epoch": 3,
            "epochs": 3, "records": {"done": 300_000, "total": 300_000},
            "tasks": {"todo": 0, "doing": 0, "done": 100}, "processes": self.processes,
            "rates": {"records_per_s": 9500.0, "mean_records_per_s": 9400.0}, "loss": 0.05,
            "logged": {}, "evaluations": [{"steps": 100, "metrics": {"accuracy": 0.9}}],
            "rolled_back": {"times": 0, "records": 0}, "updates_lost": 0, "damaged": 0,
            "records_early": 0, "nan_steps": 0, "error": "", "traceback": "",
        }  # fmt: skip
        self.folder.status_file.write_text(json.dumps({**status, **fields}))


def history_line(value: dict[str, Any]) -> str:
    """Return a line of a file of JSON lines."""
    return f"{json.dumps(value)}\n"


def log_of(folder: Path, process: str, text: str) -> Path:
    """Write the log of a process, and return its path."""
    path = folder / f"{process}.log"
    path.write_text(text)
    return path
