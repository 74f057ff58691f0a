"""``--observe mlflow=STORE``: a job as a run of MLflow."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_edl.checkpoint.durable import check_writable
from torch_edl.errors import UsageError
from torch_edl.plugins.trackers.run import Run, Settings
from torch_edl.plugins.trackers.tracker import Tracker, require

require("mlflow")

# Defaults for the process of the run. They turn off MLflow's reports to its developers, and limit
# the wait for a server that does not answer to 42 s; MLflow's own defaults are 8 attempts of 120 s.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}
_EXPERIMENT = "torch-edl"
_SQLITE = "sqlite:///"
_MOST_PARAMS = 100  # that one call may send
_MOST_CHARACTERS = 500  # that a value may have in every kind of store
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")  # what MLflow rejects
_PASSWORD = re.compile(r"(?<=:)[^/@:]+(?=@)")
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MLflowRun(Run):
    """A run in the experiment of ``MLFLOW_EXPERIMENT_NAME``, by default ``torch-edl``."""

    def open(self, value: str, job: str, run: str, settings: Settings) -> str:
        for name, default in _ENVIRONMENT.items():
            os.environ.setdefault(name, default)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client: Any = MlflowClient(tracking_uri=value)
        if run:
            self._run = run
            self._client.update_run(run, status="RUNNING")
            return run
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        experiment = (
            found.experiment_id
            if found
            else self._client.create_experiment(name, artifact_location=_artifacts(value))
        )
        made = self._client.create_run(experiment, run_name=job)
        self._run = str(made.info.run_id)
        params = [Param(name, str(value)[:_MOST_CHARACTERS]) for name, value in settings.items()]
        for start in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run, params=params[start : start + _MOST_PARAMS])
        return self._run

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_NOT_IN_NAMES.sub("_", name), value, int(time * 1000), step)
            for name, value in values.items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def log_model(self, output: str) -> None:
        log = self._client.log_artifacts if Path(output).is_dir() else self._client.log_artifact
        log(self._run, output, "model")

    def close(self, state: str) -> None:
        if state in _STATUS:
            self._client.set_terminated(self._run, _STATUS[state])


class MLflow(Tracker):
    """The observer ``mlflow``."""

    NAME = "mlflow"
    RUN = MLflowRun

    @classmethod
    def check(cls, value: str) -> str:
        """Return the URI of the tracking server or store. A folder becomes its SQLite file
        ``mlflow.db``, and the path of an SQLite file becomes absolute.

        Raises:
            UsageError: no store is given, MLflow rejects this kind, or the URI holds a password.
        """
        if not value:
            raise UsageError(
                "--observe mlflow: the store is missing; write mlflow=http://HOST:PORT"
            )
        if _PASSWORD.search(value):
            shown = _PASSWORD.sub("***", value)
            raise UsageError(
                f"--observe mlflow={shown}: the job would store the password; "
                "set MLFLOW_TRACKING_PASSWORD for a server, or PGPASSWORD for PostgreSQL"
            )
        if value.startswith("file:"):
            raise UsageError(
                f"--observe mlflow={value}: MLflow rejects file stores; write mlflow=FOLDER, which "
                "makes an SQLite database in the folder"
            )
        if value.startswith(_SQLITE):
            return _SQLITE + os.path.abspath(value.removeprefix(_SQLITE))
        if ":" in value:
            return value
        folder = Path(os.path.abspath(Path(value).expanduser()))
        check_writable(folder, "--observe mlflow", is_file=False)
        return f"{_SQLITE}{folder}/mlflow.db"


def _artifacts(uri: str) -> str | None:
    """Return the folder for the artifacts of an SQLite file, beside the file; None for a server,
    which has its own."""
    if not uri.startswith(_SQLITE):
        return None
    return Path(uri.removeprefix(_SQLITE)).with_name("mlartifacts").as_uri()
