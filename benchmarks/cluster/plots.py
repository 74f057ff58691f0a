"""Pictures of what happened, as small PNG files in ``benchmarks/pictures``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#8172b3", "#c44e52", "#937860", "#da8bc3", "#8c8c8c")


def figure(rows: int, *, title: str, share: bool = True) -> tuple[Any, Sequence[Any]]:
    """A figure with several diagrams, one below the other; ``share``: with the same time axis."""
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(
            "the pictures need matplotlib: pip install 'torch-edl[benchmarks]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    made, axes = pyplot.subplots(
        rows, 1, figsize=(7.5, 0.6 + 2.2 * rows), sharex=share, squeeze=False, layout="constrained"
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
        colors=COLOURS[: len(users)],
        step="post",
        linewidth=0,
    )
    axis.axhline(total, color="black", linewidth=0.8, linestyle="--")
    axis.set_ylim(0, total * 1.08)
    axis.set_ylabel("CPUs")
    axis.margins(x=0)
    axis.legend(loc="lower right", fontsize=8)


def bars(axis: Any, names: Sequence[str], parts: Sequence[Mapping[str, float]]) -> None:
    """One bar for each name, of parts on top of each other; the smallest parts are one."""
    largest = {key for each in parts for key in sorted(each, key=lambda k: -each[k])[:5]}
    below = [0.0] * len(names)
    for number, key in enumerate([*sorted(largest), "other"]):
        heights = [
            each.get(key, 0.0)
            if key != "other"
            else sum(value for name, value in each.items() if name not in largest)
            for each in parts
        ]
        colour = COLOURS[number % len(COLOURS)]
        axis.bar(names, heights, bottom=below, label=key, color=colour)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)


def save(made: Any, name: str) -> str:
    """Writes the picture, and returns its path from the root of the repository."""
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{name}.png"
    made.savefig(path, dpi=90)
    return str(path.relative_to(PICTURES.parents[1]))
