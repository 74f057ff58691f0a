"""Initial values of new rows, as chosen by the user or estimated from a weight tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from torch_edl.errors import UsageError

_SAMPLE = 65_536
_PROBE = 1 << 20

_ARGS: dict[str, dict[str, float]] = {
    "zeros": {},
    "constant": {"value": 0.0},
    "uniform": {"low": -0.05, "high": 0.05},
    "normal": {"mean": 0.0, "std": 0.05},
    "xavier_uniform": {"gain": 1.0},
    "xavier_normal": {"gain": 1.0},
}


@dataclass(frozen=True)
class Initializer:
    """Distribution of a new row: ``zeros``, ``constant``, ``uniform`` or ``normal``."""

    kind: str
    args: Mapping[str, float] = field(default_factory=dict)
    measured: bool = False
    """True if the distribution was estimated from a weight tensor of this process."""


InitializerLike = str | tuple[str, Mapping[str, float]] | Initializer
"""A name, a name with arguments, or the distribution itself."""


def resolve(
    choice: InitializerLike,
    num_embeddings: int | None,
    dim: int,
) -> Initializer:
    """Convert the user's choice into a distribution for a table of this size.

    Args:
        choice: a name (``"normal"``) or a name with arguments (``("normal", {"std": 0.01})``).

    Raises:
        UsageError: the name or an argument is unknown.
    """
    if isinstance(choice, Initializer):
        return choice
    kind, given = (choice, {}) if isinstance(choice, str) else choice
    if kind not in _ARGS:
        raise UsageError(f"initializer {kind!r}: choose one of {', '.join(_ARGS)}")
    unknown = set(given) - set(_ARGS[kind])
    if unknown:
        takes = ", ".join(_ARGS[kind]) or "no arguments"
        raise UsageError(f"initializer {kind!r}: unknown {sorted(unknown)}; it takes {takes}")
    args = {**_ARGS[kind], **{k: float(v) for k, v in given.items()}}
    if kind.startswith("xavier"):
        # Glorot & Bengio 2010, eq. 16; a table without a bound counts as a square matrix.
        std = args["gain"] * math.sqrt(2.0 / (dim + (num_embeddings or dim)))
        if kind == "xavier_normal":
            return Initializer("normal", {"mean": 0.0, "std": std})
        bound = math.sqrt(3.0) * std
        return Initializer("uniform", {"low": -bound, "high": bound})
    return Initializer(kind, args)


def measured(weight: npt.NDArray[np.float32]) -> Initializer:
    """Estimate the distribution of ``weight`` (n, dim): constant, uniform or normal.

    The kurtosis of a sample decides: it is 1.8 for a uniform and 3 for a normal distribution.
    """
    flat = weight.reshape(-1)
    sample = flat[:: max(1, flat.size // _SAMPLE)].astype(np.float64)
    mean, std = float(sample.mean()), float(sample.std())
    if std == 0.0:
        kind, args = ("constant", {"value": mean}) if mean else ("zeros", {})
        return Initializer(kind, args, measured=True)
    kurtosis = float((((sample - mean) / std) ** 4).mean())
    if kurtosis < 2.4:
        half = 3**0.5 * std
        return Initializer("uniform", {"low": mean - half, "high": mean + half}, measured=True)
    return Initializer("normal", {"mean": mean, "std": std}, measured=True)


def check_drawn(name: str, weight: npt.NDArray[np.float32]) -> None:
    """Check that ``weight`` looks random, so that servers may draw new rows instead.

    Args:
        weight: (n, dim), as created by the user's code.

    Raises:
        UsageError: the values are not independent draws from one distribution, so they were
            probably trained or computed.
    """
    if _drawn_alike(weight):
        return
    rows, dim = weight.shape
    raise UsageError(
        f"embedding {name} ({rows:,} x {dim}): its values are not random, but those of a trained "
        "model perhaps, and parameter servers would begin with random rows instead; begin with "
        f"saved rows by --load SOURCE, or train it as a dense parameter by --large-embedding "
        f"{weight.size} (docs/model_file.md)"
    )


def _drawn_alike(weight: npt.NDArray[np.float32]) -> bool:
    """Return True if the numbers may be independent draws from one distribution.

    The statistics use up to about a million numbers. For independent draws, three statistics are
    at most chi-square distributed; their limit is three times a bound that is exceeded by chance
    once in 1e17 (Laurent & Massart 2000, eq. 4.3). The fourth statistic, the variance of the
    lengths of rows, may be ten times its standard error.
    """
    rows = weight[:: max(1, weight.size // _PROBE)].astype(np.float64)
    count, dim = rows.shape
    rows -= rows.mean()
    variance = float(rows.var())
    if count < 100 or variance == 0.0:
        return True
    rows /= math.sqrt(variance)
    columns = count * float((rows.mean(0) ** 2).sum())
    pairs = count * float((np.triu(rows.T @ rows / count, 1) ** 2).sum())
    neighbours = float((rows[1:] * rows[:-1]).mean()) ** 2 * (count - 1) * dim
    # The mean square of a row has the variance of one squared number, divided by dim.
    lengths = (rows**2).mean(1)
    excess = float(lengths.var()) - (float((rows**4).mean()) - 1) / dim
    noise = float((((lengths - 1) ** 2 - lengths.var()) ** 2).mean()) / count
    return (
        columns < _limit(dim)
        and pairs < _limit(dim * (dim - 1) / 2)
        and neighbours < _limit(1)
        and bool(excess <= 0 or excess**2 < 100 * noise)
    )


def _limit(degrees: float) -> float:
    return 3 * (degrees + 2 * math.sqrt(40 * degrees) + 80)
