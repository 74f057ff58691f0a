"""Checkpoints of a ring: copied in memory between two updates, written in the background."""

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
from torch_edl.errors import CheckpointError, EdlError, UsageError
from torch_edl.trainer import weights

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where checkpoints go and when.

    Raises:
        UsageError: a value that cannot work.
    """

    directory: str = ""
    every: int = 0
    keep: int = 3
    resume: bool = False

    def __post_init__(self) -> None:
        if self.every < 0:
            raise UsageError(f"checkpoint_every={self.every}: must be 0 or more")
        if self.keep < 1:
            raise UsageError(f"keep_checkpoints={self.keep}: the newest one is always kept")
        if (self.every or self.resume) and not self.directory:
            raise UsageError("checkpoint_every and resume need checkpoint_dir")

    def under(self, config: CheckpointConfig) -> Settings:
        """What the command line says goes first."""
        if not config.dir:
            return self
        return Settings(
            directory=config.dir, every=config.every, keep=config.keep, resume=config.resume
        )

    def under_torchrun(self) -> Settings:
        """Torchrun starts all processes again after a failure, or when a node joins or leaves;
        they go on from where they were: from a checkpoint of this run of torchrun."""
        if not self.directory:
            return self
        found = layout.newest(self.directory)
        mine = found is not None and layout.read(found).job == run_name() != ""
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        return replace(self, resume=True) if mine or restarted else self


def run_name() -> str:
    """What torchrun calls this run, the same in all lives of its processes; empty: nothing that
    tells it from others."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name


class Saver:
    """The checkpoints of one process; only rank 0 writes.

    Args:
        first: nobody of this job has trained yet: what is in the folder is of another job.

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
        self._last = -1  # step of the newest one
        if self._root is not None and not settings.resume and first:
            found = layout.newest(self._root)
            if found is not None:
                raise UsageError(
                    f"checkpoint_dir={settings.directory}: holds {found.name} of an earlier job; "
                    "pass resume=True to go on from it, or choose another folder"
                )

    @property
    def keeps(self) -> bool:
        """Whether checkpoints are written."""
        return self._root is not None

    def leave_to_servers(self, config: CheckpointConfig) -> None:
        """The master takes checkpoints of servers.

        Raises:
            UsageError: the script asks for checkpoints, of which the master does not know.
        """
        if self._root is not None and not config.dir:
            raise UsageError(
                f"checkpoint_dir={self._settings.directory}: checkpoints of parameter servers are "
                "the master's; give --checkpoint-dir to torch-edl run instead"
            )

    def newest(self) -> Path | None:
        """The checkpoint to go on from; None: begin afresh."""
        if self._root is None or not self._settings.resume:
            return None
        return layout.newest(self._root)

    def after_step(self, engine: RingEngine) -> None:
        """Takes one if it is due and this is rank 0; training goes on while it is written."""
        every, step = self._settings.every, engine.replica.position.step
        if self._root is None or not every or step % every or engine.rank:
            return
        if self._writing is not None and self._writing.is_alive():
            log.warning("checkpoint of step %d left out: the one before is still written", step)
            return
        state = engine.replica.copy()
        self._writing = threading.Thread(
            target=self._write, args=(state, engine.ring, step), name="checkpoint", daemon=True
        )
        self._writing.start()

    def save_last(self, engine: RingEngine, *, last: bool = False, asked: bool = False) -> None:
        """The model as it is at the end, written now.

        Args:
            last: the job is not over, but this process goes, and nobody else has the model.
            asked: the user stops the job, and knows that there is no checkpoint.
        """
        self.close()
        step = engine.replica.position.step
        if last and not asked and self._root is None and step:
            log.warning(
                "no other process has the model: what came of %d updates is lost; with "
                "checkpoint_dir= it would be kept",
                step,
            )
        if self._root is not None and engine.rank == 0 and step and step != self._last:
            self._write(engine.replica.copy(), engine.ring, step)

    def close(self) -> None:
        """Waits for what is being written."""
        if self._writing is not None:
            self._writing.join()

    def _write(self, state: State, ring: int, step: int) -> None:
        assert self._root is not None

        def write(folder: Path) -> Manifest:
            files = replica.write(state, folder)
            # A ring that the master has replaced must not overrule the newest one.
            if self._rendezvous and not self._rendezvous.may_commit(
                ring, str(folder), written=False
            ):
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
                self._rendezvous.may_commit(ring, str(folder), written=True)
            layout.prune(self._root, self._settings.keep)
        except (OSError, CheckpointError) as error:
            log.warning("no checkpoint of step %d: %s", step, error)


def write_output(engine: RingEngine, output: str, *, job: str) -> None:
    """Writes the trained model of a ring to the folder that ``--output`` names; rank 0 does.

    Raises:
        EdlError: it cannot be written.
    """
    step = engine.replica.position.step
    if not output or engine.rank:
        return
    if not step:
        log.warning("--output %s: nothing was trained, nothing is written", output)
        return
    try:
        with replacing_folder(Path(output)) as folder:
            weights.write(weights.copied(engine.replica.model), folder / layout.EXPORTED_MODEL)
            write_metadata(folder, job=job, steps=step, tables={})
    except OSError as error:
        raise EdlError(f"--output {output}: cannot be written: {error.strerror}") from error
    log.info("model written to %s", output)
