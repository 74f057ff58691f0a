"""The output at the end of a job: the exported model, or the merged predictions. Pure."""

from __future__ import annotations

from pathlib import Path

from master.state.actions import Failure, MergePredictions, Note, OutputWritten, WriteOutput
from torch_edl.config import JobConfig


class FinalOutput:
    """The file of ``--output``, written once the job has its last model or all predictions."""

    def __init__(self, config: JobConfig) -> None:
        self._parts = config.checkpoint.parts
        self._path = config.checkpoint.output if config.trains or self._parts else ""
        self._writing = False
        self.stopped = False
        """True if the job is to stop: it writes no output."""
        self.written = not self._path
        """True if no output remains to be written."""

    def reset(self) -> None:
        """Require the output again: the model changes once more."""
        self.written = self.stopped or not self._path

    def restart(self) -> None:
        """Require the output again, and ignore the one that is being written."""
        self._writing = False
        self.reset()

    def stop(self) -> None:
        """Write no output: the job is to stop."""
        self.stopped = self.written = True

    def export(self, model: Path) -> list[WriteOutput]:
        """Return the action that exports a checkpoint; empty if it was returned before."""
        if self.written or self._writing:
            return []
        self._writing = True
        return [WriteOutput(model, Path(self._path))]

    def merge(self, tasks: int) -> list[MergePredictions]:
        """Return the action that merges the predictions of all ``tasks``; empty if it was returned
        before, or if the job predicts nothing."""
        if not self._parts or self.written or self._writing:
            return []
        self._writing = True
        return [MergePredictions(Path(self._parts), Path(self._path), tasks)]

    def apply(self, event: OutputWritten) -> list[Note | Failure]:
        """Record that the output was written, or why not."""
        what = "predictions" if self._parts else "model"
        if event.error:
            text = f"--output {self._path}: the {what} cannot be written: {event.error}"
            if self._parts:
                text += f"; what each task has predicted is in {self._parts}"
            return [Failure(text)]
        if not self._writing:
            return []
        self._writing, self.written = False, True
        return [Note("info", f"{what} written to {self._path}")]
