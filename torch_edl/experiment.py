"""What an agent was asked to run. Agents whose experiments differ do not share a job.

Pure: :func:`torch_edl.environment.this_experiment` reads what a process was asked to run.
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

    Paths are compared on one machine only. There, two folders are two experiments: relative paths
    of data and results belong to the folder. Across machines the path of the same checkout may
    differ (home folders, mounts), and replicas agree if the same program runs with the same
    arguments. So agents of different machines compare the name of the script and the digest of
    its text in place of paths.
    """

    script: str
    """Absolute path, without symbolic links; or the name of a module."""
    args: tuple[str, ...]
    """Of the script."""
    folder: str
    """The working folder: absolute path, without symbolic links."""
    machine: str
    """Host name and boot id: two agents with the same one see the same paths."""
    rdzv_id: str
    """As it was given, ``none`` if it was not."""
    digest: str
    """SHA-256 of the script's text; empty: it is no file that can be read."""

    def difference(self, other: Experiment) -> str:
        """What differs, with both values, ``self`` first; empty: they may share a job."""
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
            return f"the text of {ours} is not the one that the job began with"
        return ""

    def require(self, other: Experiment, job: str) -> None:
        """Refuses an agent that was asked for ``other`` at the job, which runs ``self``.

        Raises:
            UsageError: they differ; names both.
        """
        difference = self.difference(other)
        if difference:
            raise UsageError(
                f"job {job} is another experiment: {difference}; give this one an "
                "--rdzv-endpoint and an --rdzv-id of its own, or neither to run it alone"
            )


def _shown(args: Sequence[str]) -> str:
    text = shlex.join(args) or "(none)"
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
