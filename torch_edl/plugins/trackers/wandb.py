"""``--observe wandb=PROJECT``: a job as a run of Weights & Biases."""

from __future__ import annotations

import netrc
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torch_edl.errors import UsageError
from torch_edl.plugins.trackers.run import Run, Settings
from torch_edl.plugins.trackers.tracker import Tracker, require

require("wandb")

# Defaults for the process of the run. They turn off W&B's reports to its developers, and limit the
# wait for a server that does not answer to 30 s.
_ENVIRONMENT = {"WANDB_ERROR_REPORTING": "false", "WANDB_INIT_TIMEOUT": "30"}
# W&B rejects values of a step before the newest one, and the result of an evaluation belongs to an
# earlier step. So the step is logged as a value of its own, and is the x axis of all charts.
_STEP = "step"


class WandbRun(Run):
    """A run in a project. ``WANDB_MODE=offline`` writes it to a folder for ``wandb sync``."""

    def open(self, value: str, job: str, run: str, settings: Settings) -> str:
        for name, default in _ENVIRONMENT.items():
            os.environ.setdefault(name, default)
        import wandb

        self._run: Any = wandb.init(
            project=value,
            name=job,
            id=run or secrets.token_hex(8),
            resume="allow",
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric=_STEP)
        return str(self._run.id)

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, _STEP: step})

    def log_model(self, output: str) -> None:
        import wandb

        artifact = wandb.Artifact(f"{self._run.name}-model", type="model")
        (artifact.add_dir if Path(output).is_dir() else artifact.add_file)(output)
        self._run.log_artifact(artifact)

    def close(self, state: str) -> None:
        import wandb

        self._run.finish(exit_code=0 if state in ("finished", "left") else 1)
        # finish() may return before the file of an offline run is written: that file had only its
        # header in 3 of 20 runs on a loaded machine. teardown() waits for the process that writes.
        wandb.teardown()


class WeightsAndBiases(Tracker):
    """The observer ``wandb``."""

    NAME = "wandb"
    RUN = WandbRun

    @classmethod
    def check(cls, value: str) -> str:
        """Return the project.

        Raises:
            UsageError: no project is given, or a run could not log in.
        """
        if not value:
            raise UsageError("--observe wandb: the project is missing; write wandb=PROJECT")
        if not (_is_offline() or _has_key()):
            raise UsageError(
                f"--observe wandb={value}: no API key: run wandb login, set WANDB_API_KEY, or set "
                "WANDB_MODE=offline and upload the run later with wandb sync"
            )
        return value


def _is_offline() -> bool:
    settings = Path("wandb/settings")  # written by: wandb offline
    mode = os.environ.get("WANDB_MODE") or (settings.read_text() if settings.is_file() else "")
    return any(each in mode for each in ("offline", "dryrun", "disabled"))


def _has_key() -> bool:
    """Return True if an API key of W&B's server is in the environment or in a netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    named = os.environ.get("NETRC")
    files = [Path(named)] if named else [Path.home() / name for name in (".netrc", "_netrc")]
    for file in files:
        try:
            if file.is_file() and netrc.netrc(file).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
