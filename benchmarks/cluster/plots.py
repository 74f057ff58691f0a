"""Pictures of what happened, as small PNG files in ``benchmarks/pictures``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#8172b3", "#c44e52")


def figure(rows: int, *, title: str) -> tuple[Any, Sequence[Any]]:
    """A figure with so many diagrams, one below the other, and the same time axis."""
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(
            "the pictures need matplotlib: pip install torch-edl[benchmarks]"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    made, axes = pyplot.subplots(
        rows, 1, figsize=(7.5, 0.6 + 2.2 * rows), sharex=True, squeeze=False, layout="constrained"
    )
    made.suptitle(title, fontsize=10)
    return made, [row[0] for row in axes]


def stack(
    axis: Any, times: Sequence[float], users: Mapping[str, Sequence[float]], *, total: float
) -> None:
    """The CPUs of each user, one on top of the other, below a line for all CPUs."""
    axis.stackplot(
        times,
        *users.values(),
        labels=list(users),
        colors=_COLOURS[: len(users)],
        step="post",
        linewidth=0,
    )
    axis.axhline(total, color="black", linewidth=0.8, linestyle="--")
    axis.set_ylim(0, total * 1.08)
    axis.set_ylabel("CPUs")
    axis.margins(x=0)
    axis.legend(loc="lower right", fontsize=8)


def save(made: Any, name: str) -> str:
    """Writes the picture, and returns its path from the root of the repository."""
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{name}.png"
    made.savefig(path, dpi=90)
    return str(path.relative_to(PICTURES.parents[1]))
