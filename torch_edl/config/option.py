"""Declarations of command line options and limits for the fields of the configuration.

:mod:`torch_edl.cli.arguments.options` creates the command line from these declarations.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar

from torch_edl.errors import UsageError

JOB_KINDS = ("train", "evaluate", "predict", "script")
"""Kinds of jobs: ``script`` is a training script; all others have a model file."""
TRAIN = ("train",)
OF_MODEL_FILE = ("train", "evaluate", "predict")
TRAINING = ("train", "script")
"""Kinds of jobs that have steps and a loss."""

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of the command line."""

    spelling: str
    """Text for the help page, such as ``--ps, --servers N``. Values named ``DIR`` and ``FILE`` are
    paths, which become absolute. ``N|MIN:MAX`` of a field ``min_X`` also sets ``max_X``."""
    help: str
    """Help text of at most 62 characters. The default value is added unless the text names it."""
    _: dataclasses.KW_ONLY
    kinds: tuple[str, ...] = OF_MODEL_FILE
    """Kinds of jobs whose command line has the option."""
    group: str = ""
    """Section of the help page; empty for the section of the part of the configuration."""
    required: bool = False

    @property
    def flags(self) -> list[str]:
        """All flags of the option; messages use the first one."""
        return [word for word in self.spelling.replace(",", "").split() if word.startswith("-")]

    @property
    def metavar(self) -> str:
        """Name of the value; empty for a switch."""
        last = self.spelling.split()[-1]
        return "" if last.startswith("-") else last


def declare(
    *options: Option,
    minimum: int | None = None,
    choices: tuple[str, ...] = (),
    **field: Any,
) -> Any:
    """Create a dataclass field that declares its limits, and at most one option for each kind of
    job."""
    declared = {"options": options, "minimum": minimum, "choices": choices}
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
    """Create a dataclass field with an option, and optionally others for other kinds of jobs."""
    first = Option(spelling, help, **option)
    made: _T = declare(first, *others, minimum=minimum, choices=choices, default=default)
    return made


train_option = functools.partial(option, kinds=TRAIN)
training_option = functools.partial(option, kinds=TRAINING)
job_option = functools.partial(option, kinds=JOB_KINDS)


def options_of(field: dataclasses.Field[Any]) -> tuple[Option, ...]:
    """Return the options of a field; none for a part or a field without an option."""
    options: tuple[Option, ...] = field.metadata.get("options", ())
    return options


class Checked:
    """A dataclass whose fields are checked against their declared limits.

    Raises:
        UsageError: a value is outside its limits; the message contains option, value and limit.
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
