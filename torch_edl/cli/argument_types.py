"""What the words behind an option become.

Only what cannot be a value at all is refused here; whether one makes sense is the configuration's
to say.
"""

from __future__ import annotations

import argparse


def whole(text: str) -> int:
    """A whole number; underscores may part the digits."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def seconds(text: str) -> float:
    """A duration in seconds."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be above 0 seconds")
    return value


def worker_range(text: str) -> tuple[int, int]:
    """``4`` is (4, 4), ``2:8`` is (2, 8)."""
    low, colon, high = text.partition(":")
    try:
        return (int(low), int(high)) if colon else (int(low), int(low))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write a number or a range, such as 4 or 2:8"
        ) from None
