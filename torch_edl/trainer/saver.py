"""Checkpoints of a script: rank 0 copies its replica between two updates and writes the copy in the
background."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from torch_edl.checkpoint import layout
from torch_edl.checkpoint.export import replacing_folder, write_metadata
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import CheckpointConfig
from torch_edl.engine import replica
from torch_edl.engine.replica import State
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.engine.state_dict import copied
from torch_edl.errors import CheckpointError, EdlError, UsageError
from torch_edl.trainer import weights

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The folder of checkpoints, and when they are written.

    Raises:
        UsageError: a value is out of range, or needs another one.
    """

    directory: str = ""
    every: int = 0
    keep: int = 3
    resume: bool = False

    def __post_init__(self) -> None:
        if self.every < 0:
            raise UsageError(f"checkpoint_every={self.every}: must be 0 or more")
        if self.keep < 1:
            raise UsageError(f"keep_checkpoints={self.keep}: must be 1 or more")
        if (self.every or self.resume) and not self.directory:
            raise UsageError("checkpoint_every and resume need checkpoint_dir")

    def under(self, config: CheckpointConfig) -> Settings:
        """These settings, overridden by those of the command line."""
        if not config.dir:
            return self
        return Settings(
            directory=config.dir, every=config.every, keep=config.keep, resume=config.resume
        )

    def under_torchrun(self) -> Settings:
        """These settings, with ``resume`` where torchrun has restarted the processes.

        Torchrun restarts all processes after a failure, and when a node joins or leaves: they
        resume from the newest checkpoint of the same run of torchrun.
        """
        if not self.directory:
            return self
        found = layout.newest(self.directory)
        mine = found is not None and layout.read(found).job == run_name() != ""
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        return replace(self, resume=True) if mine or restarted else self


def run_name() -> str:
    """The id of this run of torchrun, the same after restarts of processes; empty: unknown."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name


class Saver:
    """The checkpoints of one process; only rank 0 writes.

    Args:
        first: no process of this job has trained yet, so a checkpoint in the folder is of another
            job.

    Raises:
        UsageError: the folder holds checkpoints of an earlier job, and ``resume`` is not set.
    """

    def __init__(
        self, settings: Settings, rendezvous: RingRendezvous | None, *, first: bool = True
    ) -> None:
        self._settings = settings
        self._rendezvous = rendezvous
        self._root = Path(settings.directory) if settings.directory else None
        self._writing: threading.Thread | None = None
        self._last = -1  # step of the newest checkpoint
        if self._root is not None and not settings.resume and first:
            found = layout.newest(self._root)
            if found is not None:
                raise UsageError(
                    f"checkpoint_dir={settings.directory}: holds {found.name} of an earlier job; "
                    "pass resume=True to resume from it, or choose another folder"
                )

    @property
    def keeps(self) -> bool:
        """Whether checkpoints are written."""
        return self._root is not None

    def leave_to_servers(self, config: CheckpointConfig) -> None:
        """Leaves checkpoints to the master, which takes those of parameter servers.

        Raises:
            UsageError: the script asks for checkpoints, and the command line does not.
        """
        if self._root is not None and not config.dir:
            raise UsageError(
                f"checkpoint_dir={self._settings.directory}: the master takes the checkpoints "
                "of parameter servers; give --checkpoint-dir to torch-edl run instead"
            )

    def newest(self) -> Path | None:
        """The checkpoint to resume from, or None."""
        if self._root is None or not self._settings.resume:
            return None
        return layout.newest(self._root)

    def after_step(self, engine: RingEngine) -> None:
        """Takes a checkpoint if one is due and this is rank 0; training continues while it is
        written."""
        every, step = self._settings.every, engine.replica.position.step
        if self._root is None or not every or step % every or engine.rank:
            return
        if self._writing is not None and self._writing.is_alive():
            log.warning(
                "checkpoint of step %d skipped: the previous one is still being written", step
            )
            return
        state = engine.replica.copy()
        self._writing = threading.Thread(
            target=self._write, args=(state, engine.ring, step), name="checkpoint", daemon=True
        )
        self._writing.start()

    def save_last(self, engine: RingEngine, *, last: bool = False, asked: bool = False) -> None:
        """Writes the model at the end of training, in this thread.

        Args:
            last: the job is not over, but this process leaves and no other has the model.
            asked: the user stopped the job, so a missing checkpoint is no surprise.
        """
        self.close()
        step = engine.replica.position.step
        if last and not asked and self._root is None and step:
            log.warning(
                "no other process has the model: the result of %d updates is lost; pass "
                "checkpoint_dir= to keep it",
                step,
            )
        if self._root is not None and engine.rank == 0 and step and step != self._last:
            self._write(engine.replica.copy(), engine.ring, step)

    def close(self) -> None:
        """Waits until the checkpoint in progress is written."""
        if self._writing is not None:
            self._writing.join()

    def _write(self, state: State, ring: int, step: int) -> None:
        assert self._root is not None

        def write(folder: Path) -> Manifest:
            files = replica.write(state, folder)
            # A ring that the master has replaced must not overrule the newest one.
            if self._rendezvous and not self._rendezvous.may_commit(ring):
                raise CheckpointError("the ring is not the newest, or the job is over")
            position = state.header["position"]
            return Manifest(
                job=run_name(),
                strategy="allreduce",
                steps=step,
                files=files,
                versions=(step,),
                data={"pass": position["pass_index"], "records": position["records"]},
            )

        try:
            folder, _ = layout.save(self._root, step, write)
            self._last = step
            log.info("checkpoint %s", folder)
            # Before older ones are removed: the master may have to name one that exists.
            if self._rendezvous:
                self._rendezvous.report_checkpoint(ring, str(folder))
            layout.prune(self._root, self._settings.keep)
        except (OSError, CheckpointError) as error:
            log.warning("no checkpoint of step %d: %s", step, error)


def write_output(engine: RingEngine, output: str, *, job: str) -> None:
    """Writes the trained model to the folder that ``--output`` names, on rank 0.

    Raises:
        EdlError: the folder cannot be written.
    """
    step = engine.replica.position.step
    if not output or engine.rank:
        return
    if not step:
        log.warning("--output %s: not written, since nothing was trained", output)
        return
    try:
        with replacing_folder(Path(output)) as folder:
            weights.write(copied(engine.replica.model), folder / layout.EXPORTED_MODEL)
            write_metadata(folder, job=job, steps=step, tables={})
    except OSError as error:
        raise EdlError(f"--output {output}: cannot be written: {error.strerror}") from error
    log.info("model written to %s", output)
