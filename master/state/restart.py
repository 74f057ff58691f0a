"""What a restarted master rebuilds of a job: every part by itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from master.state.actions import Failure, Note
from master.state.job import Job
from master.state.lifecycle import Part


def to_state(job: Job) -> dict[str, Any]:
    """What a restarted master needs, as JSON can say it."""
    return {name: part.to_state() for name, part in _parts(job).items()}


def from_state(job: Job, state: Mapping[str, Any], now: float) -> None:
    """The inverse of :func:`to_state`, before :meth:`Job.start`; all processes are heard now."""
    job.compose(state["fleet"]["strategy"])
    for name, part in _parts(job).items():
        part.from_state(state[name], now)
    if job.fleet.strategy == "ps":
        kept = job.config.checkpoint.dir
        again = f"start the job with --resume to continue from the newest checkpoint in {kept}"
        then = again if kept else "the model is lost; --checkpoint-dir keeps it"
        text = f"the master was killed, and the parameter servers with it: {then}"
        job.apply(Failure(text), now)
    count = len(job.members)
    text = "worker continues" if count == 1 else "workers continue"
    job.apply(Note("info", f"the master was restarted: {count} {text}"), now)


def _parts(job: Job) -> dict[str, Part]:
    return {
        "lifecycle": job.lifecycle,
        "fleet": job.fleet,
        "members": job.members,
        "workforce": job.workforce,
        "ring": job.ring.ring,
        "checkpoints": job.checkpoints,
        "workload": job.workload,
    }
