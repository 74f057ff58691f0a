"""Checkpoints of a script. Rank 0 copies its replica between two updates, then writes and commits
the copy in a background thread."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch_edl.checkpoint import layout
from torch_edl.checkpoint.claim import Claim, run_id
from torch_edl.checkpoint.export import replacing_output, write_metadata
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig
from torch_edl.config.environment import ENV_TOKEN
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.errors import CheckpointError, EdlError, UsageError
from torch_edl.master_client.session import MasterSession
from torch_edl.pytorch import state_dict
from torch_edl.pytorch.state_dict import copied

log = logging.getLogger(__name__)


def settings(
    directory: str | os.PathLike[str], every: int, keep: int, *, resume: bool
) -> CheckpointConfig:
    """Return the checkpoint settings of a script.

    Raises:
        UsageError: a value is out of range, or requires another value.
    """
    try:
        return CheckpointConfig(dir=os.fspath(directory), every=every, keep=keep, resume=resume)
    except UsageError as error:  # the message names options of the command line
        text = re.sub(r"--([\w-]+)", lambda option: option[1].replace("-", "_"), str(error))
        raise UsageError(text) from None


def under_torchrun(config: CheckpointConfig) -> CheckpointConfig:
    """Return the settings, with ``resume`` set if torchrun has restarted the processes.

    Torchrun restarts all processes after a failure, and when a node joins or leaves. The processes
    then resume from the newest checkpoint of the same run of torchrun.
    """
    if not config.dir:
        return config
    found = layout.newest(config.dir)
    mine = found is not None and layout.read(found).job == run_name() != ""
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return replace(config, resume=True) if mine or restarted else config


def run_name() -> str:
    """Return the id of this run of torchrun, which restarts do not change; empty: unknown."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name


def run_of(session: MasterSession | None) -> JobRun | None:
    """Return the run of this process; None: unknown, or the process trains alone."""
    if session is not None:
        name = session.config.name
        return JobRun(name, run_id(name, os.environ.get(ENV_TOKEN, "")))
    name = run_name()
    return JobRun(name, run_id(name, "")) if name else None


class JobRun(NamedTuple):
    """A run of a job."""

    job: str
    """Name of the job."""
    id: str
    """Id of the run; see :func:`~torch_edl.checkpoint.claim.run_id`."""


class Saver:
    """The checkpoints of one process; only rank 0 writes.

    Args:
        rendezvous: rendezvous of the ring; None: this process trains alone.
        run: run whose processes share the checkpoint folder; None: no other process of the job uses
            the folder.
        writes: False if this process can never become rank 0.
        first: True if no process of this job has trained yet, so that any checkpoint in the folder
            belongs to another job.
        models: folder for the final model of this training if the job writes no checkpoints; empty:
            none.

    Raises:
        UsageError: another running job uses the folder; or the folder holds checkpoints of an
            earlier job, and ``resume`` is not set.
        OSError: the folder cannot be written.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        rendezvous: RingRendezvous | None,
        *,
        run: JobRun | None = None,
        writes: bool = True,
        first: bool = True,
        models: str = "",
    ) -> None:
        self._config = config
        self._models = models
        self._rendezvous = rendezvous
        self._run = run or JobRun(sys.argv[0], uuid.uuid4().hex)
        self._claim: Claim | None = None
        self._writing: threading.Thread | None = None
        self._last = -1  # step of the newest checkpoint
        self.preprocessing = b""
        """Fitted preprocessing, which is part of every checkpoint; empty: none."""
        if config.dir and first:
            if writes:
                self._own()
            try:
                layout.newest_to_resume(
                    config.dir,
                    resume=config.resume,
                    option="checkpoint_dir=",
                    fix="pass resume=True",
                )
            except UsageError:
                self.release()
                raise
        self._restored = str(layout.newest(config.dir) or "") if config.resume else ""

    def _own(self) -> Claim:
        """Return the claim on the checkpoint folder; take the claim in the first call.

        Raises:
            UsageError, OSError: see the class.
        """
        if self._claim is None:
            self._claim = Claim(
                self._config.dir, job=self._run.job, run=self._run.id, option="checkpoint_dir="
            )
        return self._claim

    def release(self) -> None:
        """Release the checkpoint folder for other jobs. Nothing may be written afterwards."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    @property
    def keeps(self) -> bool:
        """Whether the job writes checkpoints."""
        return bool(self._config.dir)

    def leave_to_servers(self, config: CheckpointConfig) -> None:
        """Check that the master can take the checkpoints of a job on parameter servers.

        Args:
            config: checkpoint settings of the command line.

        Raises:
            UsageError: the script has a checkpoint folder, and the command line has none.
        """
        if self.keeps and not config.dir:
            raise UsageError(
                f"checkpoint_dir={self._config.dir}: the master takes the checkpoints of "
                "parameter servers; give --checkpoint-dir to torch-edl run instead"
            )

    def newest(self) -> Path | None:
        """Return the checkpoint to resume from, or None."""
        return layout.newest(self._config.dir) if self._config.resume else None

    def after_step(self, engine: RingEngine) -> None:
        """Take a checkpoint on rank 0 if one is due. Training continues while the checkpoint is
        written. A checkpoint is skipped while the previous one is being written."""
        every, step = self._config.every, engine.replica.position.step
        if not every or step % every or engine.membership.rank:
            return
        if self._writing is not None and self._writing.is_alive():
            log.warning(
                "checkpoint of step %d skipped: the previous one is still being written", step
            )
            return
        save = self._copy(engine)
        self._writing = threading.Thread(target=save, name="checkpoint", daemon=True)
        self._writing.start()

    def save_last(self, engine: RingEngine, *, last: bool = False, asked: bool = False) -> None:
        """Write a checkpoint of the final model on rank 0, in this thread.

        Args:
            last: True if this process leaves before the job is over, and no other process has the
                model.
            asked: True if the user stopped the job; no warning about a lost model is logged then.
        """
        self.close()
        step = engine.replica.position.step
        if last and not asked and not self.keeps and step:
            log.warning(
                "no other process has the model: the result of %d updates is lost; pass "
                "checkpoint_dir= to keep it",
                step,
            )
        if self.keeps and engine.membership.rank == 0 and step and step != self._last:
            self._copy(engine)()

    def save_for_later(self, engine: RingEngine) -> None:
        """Write the final model on rank 0, for processes that run the script from its beginning
        while the others are in a later training. If the job writes checkpoints, do nothing: the
        last checkpoint has the model."""
        membership = engine.membership
        if self._models and not self.keeps and membership.ring and not membership.rank:
            self._copy(engine)()

    def close(self) -> None:
        """Wait until the checkpoint in progress is written."""
        if self._writing is not None:
            self._writing.join()

    def _copy(self, engine: RingEngine) -> Callable[[], None]:
        """Copy the model; return a function that writes and commits the copy in any thread."""
        write_files, position = engine.snapshot(), engine.replica.position
        preprocessing = self.preprocessing
        step, data = position.step, {"pass": position.pass_index, "records": position.records}

        def write(folder: Path) -> Manifest:
            found = dict(write_files(folder).files)
            if preprocessing:
                size = (folder / PREPROCESSING_FILE).write_bytes(preprocessing)
                found[PREPROCESSING_FILE] = size
            return Manifest(
                job=run_name(),
                strategy="allreduce",
                steps=step,
                files=found,
                versions=(step,),
                data=data,
            )

        return lambda: self._save(step, write)

    def _save(self, step: int, write: Callable[[Path], Manifest]) -> None:
        # The folder for final models belongs to this job alone, so it needs no claim.
        rendezvous, root = self._rendezvous, Path(self._config.dir or self._models)
        try:
            claim = self._own() if self.keeps else None

            def fence() -> None:
                # A process that was replaced must not overwrite checkpoints of the current ring.
                if rendezvous is not None and not rendezvous.may_commit():
                    raise CheckpointError(
                        "the master no longer knows this process, or does not answer"
                    )
                if claim is not None:
                    claim.check()

            folder, _ = layout.save(
                root, step, write, run=self._run.id, restored=self._restored, fence=fence
            )
            self._last = step
            log.info("checkpoint %s", folder)
            # If the master has not recorded this checkpoint, it may still name an older one.
            if rendezvous is None or rendezvous.report_checkpoint(str(folder)):
                layout.remove_leftovers(root)
                layout.prune(folder, self._config.keep)
        except (OSError, EdlError) as error:
            log.warning("no checkpoint of step %d: %s", step, error)

    def write_output(self, engine: RingEngine, output: str, *, job: str) -> None:
        """Write the trained model on rank 0.

        Args:
            output: folder given by ``--output``; empty: nothing is written.
            job: name of the job.

        Raises:
            EdlError: the folder cannot be written.
        """
        step = engine.replica.position.step
        if not output or engine.membership.rank:
            return
        if not step:
            log.warning("--output %s: not written, since nothing was trained", output)
            return
        try:
            with replacing_output(Path(output)) as folder:
                state_dict.write(copied(engine.replica.model), folder / layout.EXPORTED_MODEL)
                if self.preprocessing:
                    (folder / PREPROCESSING_FILE).write_bytes(self.preprocessing)
                write_metadata(folder, job=job, steps=step, tables={})
        except OSError as error:
            raise EdlError(f"--output {output}: cannot be written: {error.strerror}") from error
        log.info("model written to %s", output)


class TrainedSaver(Saver):
    """The last checkpoint of a training that other processes have completed. Nothing is written.

    Args:
        checkpoint: path of the checkpoint.
        results: see :class:`~torch_edl.errors.TrainingOverError`.
    """

    def __init__(self, checkpoint: Path, results: Sequence[tuple[int, int, str]] = ()) -> None:
        super().__init__(CheckpointConfig(), None)
        self._trained = checkpoint
        self._results = results

    def results(self, first: int) -> dict[str, Any]:
        """Return the values of a training on servers by the number of their pass. Each loop over a
        loader and each value is a pass; passes are numbered from ``first``."""
        most: Counter[int] = Counter()  # values after each number of loops
        for loops, number, _ in self._results:
            most[loops] = max(most[loops], number)
        return {
            str(first + loops + sum(most[n] for n in range(loops)) + number - 1): json.loads(value)
            for loops, number, value in self._results
        }

    def newest(self) -> Path | None:
        return self._trained
