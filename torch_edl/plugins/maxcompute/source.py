"""Tables and partitions of MaxCompute: rows by index, through its tunnel.

A download session is a snapshot of the table, in which each row has an index. Each process opens a
session of its own; the size and the modification time of the table tell whether all sessions have
the same rows.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import odps.errors
import pyarrow as pa
import requests
from odps import ODPS, accounts
from odps.tunnel import TableTunnel
from odps.tunnel.io.types import odps_schema_to_arrow_schema

from torch_edl.errors import DataError, UsageError
from torch_edl.interfaces import Metadata, Records, UrlSource

_VALUE = r"\w+=[^,=/'\"]+"
_NAME = re.compile(rf"odps://(\w+)/(\w+)(?:#partition=({_VALUE}(?:,{_VALUE})*))?")

_SHOWN = 500  # maximum length of an error text


@dataclass(frozen=True, kw_only=True)
class MaxComputeName:
    """The parts of a name."""

    project: str
    table: str
    partition: str = ""
    """``column=value``, or several separated by commas; empty: a table without partitions."""

    def __str__(self) -> str:
        behind = f"#partition={self.partition}" if self.partition else ""
        return f"odps://{self.project}/{self.table}{behind}"


def parse(text: str) -> MaxComputeName:
    """Parse a name that a user wrote, without a request to a server.

    Raises:
        UsageError: a part is missing or invalid. The message shows no password.
    """
    url, mark, fragment = text.partition("#")
    found = _NAME.fullmatch(url + mark + fragment.replace(" ", ""))
    if found is None:
        shown = text.removeprefix("odps://").rpartition("@")[2]
        raise UsageError(
            f"odps://{shown}: expected odps://PROJECT/TABLE, or for a partition "
            "odps://PROJECT/TABLE#partition=COLUMN=VALUE,... (the endpoint and keys come from the "
            "environment variables of pyodps: ODPS_ENDPOINT and others)"
        )
    project, table, partition = found.groups()
    return MaxComputeName(project=project, table=table, partition=partition or "")


# pyodps logs the tokens that it reads at the level INFO.
logging.getLogger("odps").setLevel(logging.WARNING)


class MaxComputeSource(UrlSource):
    """The rows of a table without partitions, or of one partition. The endpoint and the
    credentials come from the environment variables of pyodps (``ODPS_ENDPOINT``,
    ``ODPS_STS_ACCESS_KEY_ID`` ...)."""

    def __init__(self, name: str, *, skip_damaged: bool = False) -> None:
        self._name = parse(name)
        self.name = str(self._name)
        self.damaged = 0
        self._lock = threading.Lock()
        self._odps = _client(self._name)
        with _as_data_error(self.name):
            self._session, self.stamp = self._open()
            self.count = int(self._session.count)
            self._schema = odps_schema_to_arrow_schema(self._session.schema)
            if self.count:  # the tunnel may convert times
                self._schema = self._download(0, 1).schema
        self.metadata = Metadata.of(self.name, self._schema)

    @classmethod
    def canonical(cls, url: str) -> str:
        return str(parse(url))

    @classmethod
    def check(cls, url: str) -> None:
        name = parse(url)
        with _as_data_error(str(name)):
            _stamp(_client(name), name)

    def read(self, start: int, end: int) -> Records:
        """Return the rows ``start .. end - 1`` as a ``pyarrow.Table``."""
        if not 0 <= start <= end <= self.count:
            raise DataError(self.name, f"asked for records {start} to {end} of {self.count}")
        if start == end:
            return self._schema.empty_table()
        session = self._session
        with _as_data_error(self.name):
            try:
                rows = self._download(start, end)
            except odps.errors.ODPSError:  # sessions expire after a day
                self._renew(session)
                rows = self._download(start, end)
        if len(rows) != end - start:
            raise DataError(self.name, f"{len(rows)} rows from {start} to {end}")
        return rows

    def _download(self, start: int, end: int) -> Any:
        with self._session.open_arrow_reader(start, end - start) as reader:
            return reader.read()

    def _open(self) -> tuple[Any, tuple[int, int]]:
        before = _stamp(self._odps, self._name)
        tunnel = TableTunnel(self._odps, project=self._name.project)
        session = tunnel.create_download_session(
            self._name.table, partition_spec=self._name.partition or None
        )
        if _stamp(self._odps, self._name) != before:
            raise DataError(self.name, "was changed while it was opened; start the job again")
        return session, before

    def _renew(self, expired: Any) -> None:
        with self._lock:
            if self._session is not expired:
                return  # another thread renewed the session
            session, stamp = self._open()
            if (session.count, stamp) != (self.count, self.stamp):
                raise DataError(
                    self.name, "changed while the job was using it; start the job again"
                )
            self._session = session


def _stamp(client: Any, name: MaxComputeName) -> tuple[int, int]:
    place = client.get_table(name.table, project=name.project)
    if name.partition:
        place = place.get_partition(name.partition)
    place.reload()
    return int(place.size or 0), int(place.last_data_modified_time.timestamp()) * 10**9


@contextmanager
def _as_data_error(name: str) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except (odps.errors.ODPSError, requests.RequestException, pa.ArrowException, OSError) as e:
        text = " ".join(f"{type(e).__name__}: {e}".split())[:_SHOWN]
        raise DataError(name, text) from e


def _client(name: MaxComputeName) -> Any:
    if accounts.from_environments() is None:
        raise UsageError(
            f"{name}: no keys; set ODPS_STS_ACCESS_KEY_ID, ODPS_STS_ACCESS_KEY_SECRET and "
            "ODPS_STS_TOKEN, or ODPS_BEARER_TOKEN, which pyodps reads"
        )
    client = ODPS.from_environments()
    if client is None:
        raise UsageError(f"{name}: ODPS_ENDPOINT is not set, which pyodps reads; set it to an URL")
    return client
