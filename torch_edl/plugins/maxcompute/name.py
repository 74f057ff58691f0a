"""The name of a MaxCompute table or partition:
``odps://project/table`` or ``odps://project/table#partition=day=1,hour=3``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch_edl.errors import UsageError

_WORD = re.compile(r"\w+")
_PARTITION = re.compile(r"\w+=[^,=/'\"]+(,\w+=[^,=/'\"]+)*")
_EXAMPLE = "write for example odps://project/table#partition=day=20260131"


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
    url, separator, fragment = text.removeprefix("odps://").partition("#")
    project, _, table = url.partition("/")
    if not _WORD.fullmatch(project) or not _WORD.fullmatch(table):
        shown = url.rpartition("@")[2]
        raise UsageError(
            f"odps://{shown}: expected a project and a table; {_EXAMPLE} (the endpoint and keys "
            "come from the environment variables of pyodps: ODPS_ENDPOINT and others)"
        )
    partition = fragment.removeprefix("partition=").replace(" ", "")
    wrong = not fragment.startswith("partition=") or not _PARTITION.fullmatch(partition)
    if separator and wrong:
        raise UsageError(f"{text}: expected #partition=COLUMN=VALUE,...; {_EXAMPLE}")
    return MaxComputeName(project=project, table=table, partition=partition)
