"""From the death of a worker to the next complete step: in a ring of ours, and under torchrun.

The same script, twice. Four workers train 64 MB of parameters; rank 1 kills itself in the middle
of a backward, with gradients on their way to the others. Under `torch-edl run` the others form
another ring and take the step again. Under torchrun all are started again and continue from the
newest checkpoint (one each 10 steps). Counted: seconds to the next complete step of anybody,
seconds until a step is complete that nobody had before, and steps that were trained again.

    python benchmarks/recovery.py [--workers 4] [--repeat 3]
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import launches
from report import report

_KILL_STEP = 25
_MODEL = ["--width", "2048", "--layers", "4", "--batch-size", "8"]  # 16.8 million parameters


def measure(launcher: list[str], out: Path, *words: str) -> dict[str, float]:
    """One run with one death."""
    notes = launches.run(
        launcher, "ours", out, *_MODEL,
        "--steps", "45", "--kill-step", str(_KILL_STEP), *words,
    )  # fmt: skip
    _, killed = json.loads((out / "killed").read_text())
    before = max(note.step for note in notes if note.time <= killed)
    after = [note for note in notes if note.time > killed]
    beyond = next(note for note in after if note.step > before)
    started = {note.pid for note in notes if note.time <= killed}
    again = sum(note.step <= before for note in after) / max(1, len({n.pid for n in after}))
    return {
        "next_step_s": round(after[0].time - killed, 3),
        "new_step_s": round(beyond.time - killed, 3),
        "lost_steps": round(again),
        "survivors": len(started & {note.pid for note in after}),
    }


def main() -> None:
    """Prints one JSON line."""
    args = launches.arguments(__doc__, workers=4, repeat=3)
    ours, torchrun = [], []
    with launches.folder() as name:
        root = Path(name)
        for number in range(args.repeat):
            ours.append(measure(launches.torch_edl(args.workers), root / f"ours-{number}"))
            keep = ["--checkpoint-dir", str(root / f"kept-{number}"), "--checkpoint-every", "10"]
            torchrun.append(
                measure(
                    launches.torchrun(args.workers, "--max-restarts", "3"),
                    root / f"torchrun-{number}",
                    *keep,
                )
            )
    mine = statistics.median(run["new_step_s"] for run in ours)
    theirs = statistics.median(run["new_step_s"] for run in torchrun)
    report(
        "recovery",
        {
            "workers": args.workers,
            "ours": ours,
            "torchrun": torchrun,
            "ours_s": mine,
            "torchrun_s": theirs,
            "times_faster": round(theirs / mine, 1),
        },
    )


if __name__ == "__main__":
    main()
