"""What it costs that no push is lost: DeepFM with each --durability.

`torch-edl run` of examples/deepfm with 2 servers and 4 workers, as in deepfm.py: with checkpoints
alone, with a journal in two of its modes, and with replicas. Runs alternate; medians count.

    python benchmarks/durability.py [--records 512000] [--repeat 3] [--local-steps 1]
"""

from __future__ import annotations

import argparse
import os
import statistics

import deepfm
import deepfm_data
from report import report

_PARTS = {
    "checkpoint": "",
    "journal": "--durability journal",
    "journal-always": "--durability journal --fsync always",
    "replica": "--durability replica",
}


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=512_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--only", default=",".join(_PARTS), help=f"some of {','.join(_PARTS)}")
    args = parser.parse_args()
    args.lr, args.output = 0.02, None
    args.data = deepfm_data.ROOT / "build" / "benchmarks" / f"deepfm-{args.records}"
    deepfm_data.make_data(args.data, args.records)
    load_before = os.getloadavg()[0]
    rates: dict[str, list[float]] = {}
    for _ in range(args.repeat):
        for part in args.only.split(","):
            args.run_args = _PARTS[part]
            made = deepfm.run_file(args, args.local_steps)
            rates.setdefault(part, []).append(made["samples_per_s"])
    medians = {part: statistics.median(found) for part, found in rates.items()}
    plain = medians.get("checkpoint")
    report(
        "durability",
        {
            "load_before": load_before,
            "records": args.records,
            "local_steps": args.local_steps,
            "samples_per_s": rates,
            "medians": medians,
            "ratios": {p: round(rate / plain, 3) for p, rate in medians.items()} if plain else {},
        },
    )


if __name__ == "__main__":
    main()
