"""The experiment that an agent runs. All agents of a job must run the same experiment.

Pure: :func:`torch_edl.config.environment.this_experiment` creates the experiment of a process.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_edl.errors import UsageError

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The command of one agent.

    Paths are compared on the same machine only. There, different working folders are different
    experiments, because relative paths of data and results depend on the folder. On other machines,
    the same checkout may have another path (home folders, mounts), and replicas agree if the same
    program runs with the same arguments. Agents of different machines therefore compare the name
    of the script and the digest of its text.
    """

    script: str
    """Absolute path of the script without symbolic links, or the name of a module."""
    args: tuple[str, ...]
    """Arguments of the script."""
    folder: str
    """Absolute path of the working folder without symbolic links."""
    machine: str
    """Host name and boot id; agents with the same value see the same paths."""
    rdzv_id: str
    """Value of ``--rdzv-id``; ``none`` by default."""
    digest: str
    """SHA-256 of the text of the script; empty if the script is not a readable file."""

    def difference(self, other: Experiment) -> str:
        """Return the first difference with both values, ``self`` first; empty if both agree."""
        if self.rdzv_id != other.rdzv_id:
            return f"--rdzv-id {self.rdzv_id} there, {other.rdzv_id} here"
        here = self.machine == other.machine
        theirs, ours = (e.script if here else Path(e.script).name for e in (self, other))
        if theirs != ours:
            return f"script {theirs} there, {ours} here"
        if self.args != other.args:
            return f"arguments {_shown(self.args)} there, {_shown(other.args)} here"
        if here and self.folder != other.folder:
            return f"working folder {self.folder} there, {other.folder} here"
        if self.digest != other.digest:
            return f"the text of {ours} has changed since the start of the job"
        return ""

    def require(self, other: Experiment, job: str) -> None:
        """Reject an agent that runs ``other`` if the job runs ``self``.

        Raises:
            UsageError: the experiments differ; the message contains both values.
        """
        difference = self.difference(other)
        if difference:
            raise UsageError(
                f"job {job} runs another experiment: {difference}; choose another --rdzv-endpoint "
                "and --rdzv-id, or leave both out to start a separate job"
            )


def _shown(args: Sequence[str]) -> str:
    text = shlex.join(args) or "(none)"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
