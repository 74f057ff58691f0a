"""The last status of a job as its master leaves it in its pod: one line of JSON. Pure.

Kubernetes keeps 4096 bytes of the termination message of a container, for as long as the pod is
there: how a job ended is told also when no client was there to hear it.
"""

from __future__ import annotations

from google.protobuf import json_format

from torch_edl.wire import master_pb2 as pb

MAX_BYTES = 4096
# A text that is cut keeps more than that.
_LEAST_CHARS = 100


def to_text(status: pb.GetStatusResponse) -> str:
    """What fits: the numbers, the last evaluation, how the texts begin, and the end of the
    traceback."""
    kept = pb.GetStatusResponse()
    kept.CopyFrom(status)
    kept.ClearField("events")
    kept.ClearField("processes")
    del kept.evaluations[:-1]
    expendable = ["logged", "evaluations", "rates"]
    while len((text := _text(kept)).encode()) > MAX_BYTES:
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


def from_text(text: str) -> pb.GetStatusResponse | None:
    """The status; None: the text is none, but the last lines of a master that crashed."""
    if not text.startswith("{"):
        return None
    try:
        return json_format.Parse(text, pb.GetStatusResponse(), ignore_unknown_fields=True)
    except json_format.ParseError:
        return None


def _text(status: pb.GetStatusResponse) -> str:
    return json_format.MessageToJson(status, indent=None, ensure_ascii=False)
