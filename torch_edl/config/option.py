"""How a field of the configuration declares its option of the command line, and its limits.

The command line is made from these declarations by :mod:`torch_edl.cli.options`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from torch_edl.errors import UsageError

JOB_KINDS = ("train", "evaluate", "predict", "script")
"""``script``: a training script; all others: a model file."""
TRAIN = ("train",)
OF_MODEL_FILE = ("train", "evaluate", "predict")
TRAINING = ("train", "script")

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of the command line."""

    spelling: str
    """As on the help page: ``--ps, --servers N``. ``DIR`` and ``FILE`` are paths, which become
    absolute; ``N|MIN:MAX`` of a field ``min_X`` sets ``max_X`` too."""
    help: str
    """At most 62 characters; the default value is added unless the text names the default."""
    _: dataclasses.KW_ONLY
    kinds: tuple[str, ...] = OF_MODEL_FILE
    """The kinds of jobs whose command line has the option."""
    group: str = ""
    """The section of the help page; empty: the section of the part of the configuration."""
    required: bool = False

    @property
    def flags(self) -> list[str]:
        """All flags; the first one is named in messages."""
        return [word for word in self.spelling.replace(",", "").split() if word.startswith("-")]

    @property
    def metavar(self) -> str:
        """What the value is called; empty: the option is a switch."""
        last = self.spelling.split()[-1]
        return "" if last.startswith("-") else last


def declare(
    *options: Option,
    set_by: str = "",
    minimum: int | None = None,
    choices: tuple[str, ...] = (),
    **field: Any,
) -> Any:
    """A field of a dataclass that declares its options and its limits.

    Args:
        options: at most one for each kind of job.
        set_by: what sets a field that has no option.
        field: for :func:`dataclasses.field`.
    """
    declared = {"options": options, "set_by": set_by, "minimum": minimum, "choices": choices}
    return dataclasses.field(metadata=declared, **field)


def option(
    default: _T,
    spelling: str,
    help: str,
    *others: Option,
    minimum: int | None = None,
    choices: tuple[str, ...] = (),
    **option: Any,
) -> _T:
    """A field of a dataclass that has an option, and perhaps others for other kinds of jobs."""
    first = Option(spelling, help, **option)
    made: _T = declare(first, *others, minimum=minimum, choices=choices, default=default)
    return made


def options_of(field: dataclasses.Field[Any]) -> tuple[Option, ...]:
    """The options of a field; none of a field that is a part, or that something else sets."""
    options: tuple[Option, ...] = field.metadata.get("options", ())
    return options


class Checked:
    """A dataclass whose fields are checked against the limits that they declare.

    Raises:
        UsageError: names the option, its value and the limit.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            options, value = options_of(field), getattr(self, field.name)
            name = options[0].flags[0] if options else field.name
            minimum, choices = field.metadata.get("minimum"), field.metadata.get("choices")
            if minimum is not None and value < minimum:
                raise UsageError(f"{name} {value}: must be {minimum} or more")
            if choices and value not in choices:
                raise UsageError(f"{name} {value}: choose one of {', '.join(choices)}")
