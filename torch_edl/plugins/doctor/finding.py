"""What a check found, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "warning", "problem"]
SCHEMA = 1
"""Version of the JSON of ``torch-edl doctor --json``."""
MB, GB = 1e6, 1e9


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    """Subject of the check, such as ``open files``."""
    state: State
    """``problem``: no job can run. ``warning``: some jobs will fail or will be slow."""
    found: str
    """What was found, in a few words."""
    fix: str = ""
    """What to change; empty if the state is ``ok``."""
    values: dict[str, Any] = field(default_factory=dict)
    """Measured values by name, with the unit in the name."""


def ok(check: str, found: str, **values: Any) -> Finding:
    """Return a finding that needs no change."""
    return Finding(check=check, state="ok", found=found, values=values)


def warning(check: str, found: str, fix: str, **values: Any) -> Finding:
    """Return a finding that affects some jobs, or their speed."""
    return Finding(check=check, state="warning", found=found, fix=fix, values=values)


def problem(check: str, found: str, fix: str, **values: Any) -> Finding:
    """Return a finding that prevents every job from running."""
    return Finding(check=check, state="problem", found=found, fix=fix, values=values)


def report(platform: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the object that ``--json`` prints."""
    return {
        "schema": SCHEMA,
        "platform": platform,
        "can_run": all(each.state != "problem" for each in findings),
        "findings": [vars(each) for each in findings],
    }


def size(count: float) -> str:
    """Return a number of bytes as text, such as ``1.5 GB``."""
    return f"{count / GB:,.1f} GB" if count >= GB else f"{count / MB:,.0f} MB"
