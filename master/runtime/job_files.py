"""Files of a job: the checkpoints that a master finds when it begins and its claim on their folder,
the log of events, journals and temporary files, and their removal after the end."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from master.state.actions import Saved
from master.state.job.job import ManagedJob
from master.state.lifecycle import EVENTS_KEPT
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.claim import Claim, run_id
from torch_edl.checkpoint.durable import replacing
from torch_edl.config import JobConfig
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.errors import CheckpointError
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.wire import event_messages
from torch_edl.wire import master_pb2 as pb

log = logging.getLogger(__name__)


# ---- checkpoints ----


def claim(config: JobConfig, token: str) -> Claim | None:
    """Claim the checkpoint directory for this job; None if the job has none. Raises UsageError if
    another job has it."""
    root = config.checkpoint.dir
    if not root or config.kind not in ("train", "script"):
        return None
    return Claim(root, job=config.name, run=run_id(config.name, token))


def prepare(config: JobConfig) -> Saved | None:
    """Remove partial checkpoints, and return the checkpoint to resume from; None if there is
    none."""
    if not config.checkpoint.dir or config.kind not in ("train", "script"):
        return None
    return _prepare(Path(config.checkpoint.dir), resume=config.checkpoint.resume)


def _prepare(root: Path, *, resume: bool) -> Saved | None:
    layout.remove_leftovers(root)
    newest = layout.newest_to_resume(root, resume=resume)
    return None if newest is None else Saved(newest, layout.read(newest))


def prepare_later(config: JobConfig) -> dict[int, Saved]:
    """Return the checkpoints from which later trainings of a script are resumed, by the number of
    the training; see :func:`prepare`."""
    if not config.checkpoint.dir or config.kind != "script":
        return {}
    folders = layout.training_dirs(config.checkpoint.dir)
    found = {n: _prepare(root, resume=config.checkpoint.resume) for n, root in folders.items()}
    return {number: saved for number, saved in found.items() if saved is not None}


def newest(config: JobConfig, left: Mapping[str, Any], claim: Claim | None = None) -> Saved | None:
    """Return the newest checkpoint of a restarted job, which an earlier master may have committed
    without storing the fact; None if there is none. A checkpoint of another run counts only if it
    is in the stored state. A script's ring reads its checkpoints itself."""
    ring = config.kind == "script" and left["fleet"]["strategy"] != "ps"
    if ring or config.kind not in ("train", "script"):
        return None
    root, noted = config.checkpoint.dir, left["checkpoints"]["newest"]
    root = root and left["checkpoints"]["root"]
    complete = [*(layout.complete(root) if root else ()), *([Path(noted)] if noted else ())]
    for path in sorted(set(complete), reverse=True):
        with contextlib.suppress(CheckpointError):
            found = Saved(path, layout.read(path))
            if str(path) == noted or claim is None or found.manifest.run == claim.run:
                return found
    return None


def evaluated(config: JobConfig, left: Mapping[str, Any] | None) -> list[Saved]:
    """Return the checkpoints that may be the best one by ``--keep-best``, oldest first: the best
    one in the state of the earlier master, or all that have metrics in the folder that a new job
    resumes."""
    if not config.train.keep_best:
        return []
    noted = left["checkpoints"]["best"] if left is not None else ""
    root = config.checkpoint.dir if left is None else ""
    paths = [*(layout.complete(root) if root else ()), *([Path(noted)] if noted else ())]
    found = []
    for path in paths:
        with contextlib.suppress(CheckpointError):
            found.append(Saved(path, layout.read(path)))
    return [each for each in found if each.manifest.metrics]


# ---- other files ----


def prepare_parts(config: JobConfig, *, anew: bool) -> None:
    """Create the folder for unmerged predictions; a new run first removes those of earlier runs."""
    parts = config.checkpoint.parts
    if parts and anew:
        shutil.rmtree(parts, ignore_errors=True)
    if parts:
        Path(parts).mkdir(parents=True, exist_ok=True)


def preprocessing(
    kept: Path, config: JobConfig, resumed: Saved | None, *, restarted: bool
) -> bytes:
    """Return the fitted preprocessing of the job; empty if it is not fitted yet. ``kept`` is its
    file, which an earlier master of a restarted job may have written."""
    if not restarted:
        kept.unlink(missing_ok=True)  # left by another job of this name
    folder = str(resumed.path) if resumed is not None else config.checkpoint.load
    source = Path(folder) / PREPROCESSING_FILE
    if folder and not kept.exists() and source.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as file:
            file.write(source.read_bytes())
    return kept.read_bytes() if kept.exists() else b""


def temporary(config: JobConfig, own: Path) -> Path:
    """Return the folder for temporary files that processes of the job exchange: the folder of the
    job, or for several machines one beside the output, which all machines share.

    Args:
        own: the folder of the job.
    """
    keep = config.checkpoint
    if config.is_on_one_machine or keep.dir or not keep.output or not config.trains:
        return own
    return Path(keep.output).parent / f".{config.name}"


def mark_shared(config: JobConfig, incarnation: str) -> Path | None:
    """Create a file in the folder of the checkpoints or of the output, by which a machine that
    joins finds out if it has this folder. Returns None if the job has no such folder.

    Raises:
        OSError: the folder cannot be written.
    """
    keep = config.checkpoint
    folder = keep.dir or (keep.output and str(Path(keep.output).parent))
    if not folder:
        return None
    mark = Path(folder) / f".{config.name}-{incarnation}.shared"
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return mark


def journals_of(config: JobConfig, folder: JobFolder, token: str) -> Path:
    """Return the folder of the journals of this run: below the job's folder, or below
    --journal-dir, which jobs of several machines may share."""
    parent = config.durability.journal_dir
    if not parent:
        return folder.dir / "journal" / run_id(config.name, token)
    return Path(parent) / config.name / run_id(config.name, token)


def left_journals(config: JobConfig, own: Path) -> Sequence[str]:
    """Return a warning for each folder of journals that another run of this name left."""
    shared = bool(config.durability.journal_dir) and own.parent.is_dir()
    others = sorted(path.name for path in own.parent.iterdir() if path != own) if shared else ()
    return [
        f"{own.parent / name}: journals of another run of a job {config.name}, which failed, was "
        "killed, or still runs; remove the folder if that run is over"
        for name in others
    ]


def _has_failed(job: ManagedJob) -> bool:
    return job.lifecycle.outcome is None or job.lifecycle.outcome.state == "failed"


def may_go_on(job: ManagedJob, journals: Path) -> bool:
    """Return whether the user may continue a job that is over: it failed and kept journals."""
    return job.config.kind == "train" and _has_failed(job) and journals.exists()


def tidy(
    job: ManagedJob, temporary: Path, journals: Path, claim: Claim | None, *, goes_on: bool
) -> None:
    """Remove the files of a job that is over, except the state of one that the user may
    continue."""
    failed = _has_failed(job)
    if not goes_on:
        # Final checkpoint of a job without a checkpoint directory.
        shutil.rmtree(temporary / "final", ignore_errors=True)
        (temporary / PREPROCESSING_FILE).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty: the job's own folder, or one to continue
        temporary.rmdir()
    if failed and journals.exists():
        log.warning("the journals of this job stay in %s, since it failed", journals)
    else:
        shutil.rmtree(journals, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: it has journals of other runs
            journals.parent.rmdir()
    if job.config.checkpoint.parts and not failed:
        shutil.rmtree(job.config.checkpoint.parts, ignore_errors=True)
    if claim is not None and job.config.kind == "train":
        with contextlib.suppress(CheckpointError):  # another job has claimed the folder
            claim.check()
            layout.remove_leftovers(job.config.checkpoint.dir)


# ---- events ----


class EventFile:
    """Appends events to a file, one JSON object in each line; the file of an earlier master is
    continued."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed = False
        self.written, self._is_cut = _end_of(path)
        """Number of the last event in the file; 0 if it is empty."""

    def newest(self, most: int = EVENTS_KEPT) -> list[pb.Event]:
        """Return the last complete events of the file, in order."""
        lines: deque[bytes] = deque(maxlen=most)
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            lines.extend(file)
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):  # truncated by a full disk
                found.append(event_messages.from_line(line))
        return found

    def write(self, events: Sequence[pb.Event]) -> None:
        """Append events, in the order of their numbers. An error is logged once and otherwise
        ignored: training does not depend on this file."""
        if not events:
            return
        lines = "".join(f"{event_messages.to_line(event)}\n" for event in events)
        self.written = events[-1].sequence
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"\n{lines}" if self._is_cut else lines)
            self._failed = self._is_cut = False
        except OSError as error:
            if not self._failed:
                log.warning("%s: %s: events are not kept", self._path, error.strerror)
            self._failed = True
            self._is_cut = _end_of(self._path)[1]


def _end_of(path: Path) -> tuple[int, bool]:
    """Return the number of the last complete event, and whether a partial line follows."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:  # none
        return 0, False
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # truncated by a full disk
            return event_messages.from_line(line).sequence, bool(lines[-1])
    return 0, bool(lines[-1])
