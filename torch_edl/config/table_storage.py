"""The place of a table's rows: the memory of a server, or a folder on its disk."""

from __future__ import annotations

from pathlib import PurePosixPath

from torch_edl.errors import UsageError

MEMORY = "memory"
_DISK = "disk:"


def folder_of(storage: str, option: str) -> str:
    """Return the folder of ``disk:DIR``, or an empty string for ``memory``.

    Args:
        option: name of the option, for the message.

    Raises:
        UsageError: the value is neither, or the folder is not an absolute path.
    """
    if storage == MEMORY:
        return ""
    folder = storage.removeprefix(_DISK)
    if folder == storage or not PurePosixPath(folder).is_absolute() or "\0" in folder:
        raise UsageError(
            f"{option} {storage}: expected memory, or disk: and the absolute path of a folder on a "
            "local disk of the servers, such as disk:/mnt/nvme"
        )
    return folder
