"""The last status of a job as its master leaves it in an annotation of its Job: one line of JSON.
Pure.

An annotation stays when the pod of the master is evicted or deleted: how a job ended is told also
when no client was there to hear it. A master that may not change its Job leaves the status in the
termination message of its pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format

from torch_edl.kubernetes import names
from torch_edl.wire import master_pb2 as pb

# All annotations of an object may have 256 KiB.
MAX_BYTES = 16 * 1024
MAX_MESSAGE_BYTES = 4096
"""Bytes that Kubernetes keeps of the termination message of a container."""
# A text that is cut keeps more than that.
_LEAST_CHARS = 100


def to_text(status: pb.GetStatusResponse, *, most: int = MAX_BYTES) -> str:
    """What fits: the numbers, the last evaluation, how the texts begin, and the end of the
    traceback.

    Args:
        most: bytes of the text.
    """
    kept = pb.GetStatusResponse()
    kept.CopyFrom(status)
    kept.ClearField("events")
    kept.ClearField("processes")
    del kept.evaluations[:-1]
    expendable = ["logged", "evaluations", "rates"]
    while len((text := _text(kept)).encode()) > most:
        longest = max(
            ("strategy_reason", "error", "traceback"), key=lambda n: len(getattr(kept, n))
        )
        said = getattr(kept, longest)
        half = len(said) // 2
        if half > _LEAST_CHARS:
            cut = said[-half:] if longest == "traceback" else f"{said[:half].rstrip('.')}..."
            setattr(kept, longest, cut)
        else:
            kept.ClearField(expendable.pop(0))
    return text


def of(manifest: Mapping[str, Any]) -> pb.GetStatusResponse | None:
    """Return how the job of a Job ended; None: its master has not said so."""
    annotations = manifest["metadata"].get("annotations") or {}
    return from_text(annotations.get(names.STATUS, ""))


def state_of(manifest: Mapping[str, Any]) -> str:
    """Return the state in which the job of a Job ended; empty: its master has not said so."""
    found = of(manifest)
    return found.state if found is not None else ""


def from_text(text: str) -> pb.GetStatusResponse | None:
    """The status; None: the text is none."""
    if not text.startswith("{"):
        return None
    try:
        return json_format.Parse(text, pb.GetStatusResponse(), ignore_unknown_fields=True)
    except json_format.ParseError:
        return None


def _text(status: pb.GetStatusResponse) -> str:
    return json_format.MessageToJson(status, indent=None, ensure_ascii=False)
