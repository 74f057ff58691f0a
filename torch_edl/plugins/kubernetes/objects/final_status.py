"""The final status of a job, stored as one line of JSON in an annotation of the master's Job.

The annotation remains when the pod of the master is evicted or deleted, so a client that connects
later still learns how the job ended. A master that may not change its Job object writes the status
to the termination message of its pod. This module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from torch_edl.plugins.kubernetes import names
from torch_edl.wire import master_pb2 as pb

# Kubernetes limits all annotations of an object together to 256 KiB.
MAX_BYTES = 16 * 1024
MAX_MESSAGE_BYTES = 4096
"""Largest termination message of a container in Kubernetes, in bytes."""
# Texts of up to this length are not shortened further.
_LEAST_CHARS = 100


def to_text(status: pb.GetStatusResponse, *, most: int = MAX_BYTES) -> str:
    """Encode a status, shortened to fit: numbers, last evaluation, start of the texts and end of
    the traceback.

    Args:
        most: largest size of the result in bytes.
    """
    kept = pb.GetStatusResponse()
    kept.CopyFrom(status)
    kept.ClearField("events")
    kept.ClearField("processes")
    del kept.evaluations[:-1]
    expendable = ["events_count", "logged", "evaluations", "rates"]
    while len((text := _text(kept)).encode()) > most:
        longest = max(("reason", "error", "traceback"), key=lambda n: len(getattr(kept, n)))
        said = getattr(kept, longest)
        half = len(said) // 2
        if half > _LEAST_CHARS:
            cut = said[-half:] if longest == "traceback" else f"{said[:half].rstrip('.')}..."
            setattr(kept, longest, cut)
        else:
            kept.ClearField(expendable.pop(0))
    return text


def of(manifest: Mapping[str, Any]) -> pb.GetStatusResponse | None:
    """Return the final status of a Job object; None if its master has not written one."""
    annotations = manifest["metadata"].get("annotations") or {}
    return from_text(annotations.get(names.STATUS, ""))


def state_of(manifest: Mapping[str, Any]) -> str:
    """Return the final state of a Job object; empty if its master has not written one."""
    found = of(manifest)
    return found.state if found is not None else ""


def from_text(text: str) -> pb.GetStatusResponse | None:
    """Decode a status; None if the text is not a status."""
    if not text.startswith("{"):
        return None
    try:
        return json_format.Parse(text, pb.GetStatusResponse(), ignore_unknown_fields=True)
    except json_format.ParseError:
        return None


def _text(status: pb.GetStatusResponse) -> str:
    return json_format.MessageToJson(status, indent=None, ensure_ascii=False)
