"""Files of YAML that a user names: read with a bound, and with errors that name the fix."""

from __future__ import annotations

from typing import Any

from torch_edl.errors import UsageError

_MAX_BYTES = 1 << 20


def read(path: str, *, option: str, content: str, typed: bool = True) -> Any:
    """What the file holds.

    Args:
        option: that named the file, for errors.
        content: what the file is to hold, such as ``options``, for errors.
        typed: False: all values are texts.

    Raises:
        UsageError: the file cannot be read, is too large, or is not YAML.
    """
    import yaml  # a command without such a file starts without it

    where, wanted = f"{option} {path}", f"name a YAML file of {content}"
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror}; {wanted}") from error
    if len(text) > _MAX_BYTES:
        raise UsageError(f"{where}: above {_MAX_BYTES >> 20} MiB; {wanted}")
    try:
        return yaml.load(text, Loader=yaml.SafeLoader if typed else yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise UsageError(f"{where}: no YAML: {problem[:200]}; {wanted}") from error
