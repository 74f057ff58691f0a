"""A stand-in for MaxCompute for tests, in a process of its own; or a real project.

``EDL_TEST_ODPS_PROJECT`` names a project in which the tests may make and delete tables, with the
environment variables of pyodps; without it the stand-in serves one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather

_TYPES = {"int64": "bigint", "string": "string", "double": "double", "null": "string"}


class MaxCompute:
    """A project.

    Args:
        folder: for the tables of the stand-in.
        environment: receives the variables of pyodps.
    """

    def __init__(self, folder: Path, environment: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self.project = os.environ.get("EDL_TEST_ODPS_PROJECT", "")
        if self.project:
            return
        self.project = "edl"
        program = Path(__file__).with_name("maxcompute_tunnel.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        for name, value in {
            "ODPS_ENDPOINT": self.endpoint,
            "ODPS_TUNNEL_ENDPOINT": self.endpoint,
            "ODPS_STS_ACCESS_KEY_ID": "key",
            "ODPS_STS_ACCESS_KEY_SECRET": "hush",
            "ODPS_STS_TOKEN": "hush-token",
            "NO_PROXY": "127.0.0.1",
        }.items():
            environment.setenv(name, value)

    @property
    def is_real(self) -> bool:
        """True for a project of MaxCompute itself."""
        return self._process is None

    def url(self, table: str, partition: str = "") -> str:
        """The name of a table for ``--data``."""
        return f"odps://{self.project}/{table}" + (f"#partition={partition}" * bool(partition))

    def write(self, table: str, records: pa.Table, partition: str = "") -> None:
        """Makes a table, or replaces its rows."""
        if self.is_real:
            self._write(table, records, partition)
            return
        place = self._folder / self.project / table / partition
        place.parent.mkdir(parents=True, exist_ok=True)
        feather.write_feather(records, place.with_name(place.name + ".arrow"))

    def _write(self, table: str, records: pa.Table, partition: str) -> None:
        from odps import ODPS  # takes two seconds, which a test of the fake does without

        client = ODPS.from_environments()
        columns = ", ".join(f"{f.name} {_TYPES[str(f.type)]}" for f in records.schema)
        keys = [f"{part.partition('=')[0]} string" for part in partition.split(",") if part]
        client.delete_table(table, project=self.project, if_exists=True)
        made = client.create_table(
            table, (columns, ", ".join(keys)) if keys else columns, project=self.project
        )
        with made.open_writer(
            partition or None, create_partition=bool(partition), arrow=True
        ) as writer:
            writer.write(records)

    def expire(self) -> None:
        """Ends all sessions of the stand-in."""
        with urllib.request.urlopen(f"{self.endpoint}/expire", data=b"") as answer:
            answer.read()

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.communicate()
