"""What the positions of a ring say of each pass of a script over its data. Pure.

Members report the position a few times per second, so the last report of a pass may be missing, and
short passes have none. The next report tells how many records all passes before it had, and how
many of these the script left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_edl.plugins.audit.replay import Replay


@dataclass(frozen=True)
class AuditedPass:
    """One pass over the data, such as a loop over ``job.loader()``."""

    number: int
    position: int
    """Number of records that are done."""
    of: int
    """Number of all records; 0: unknown."""


def passes_of(job: Replay) -> tuple[list[AuditedPass], int, list[str]]:
    """Return the passes in which a report was made, the number of records of all other passes, and
    the records that were left out."""
    places, found, left = sorted(job.passes.items()), [], []
    unseen = places[0][1].before if places else 0
    for index, (number, place) in enumerate(places):
        trained = place.records
        if index + 1 < len(places):
            later, next = places[index + 1]
            trained = next.before - place.before
            if skipped := next.left - place.left:
                where = f"pass {number}" if trained < place.of else f"a pass before pass {later}"
                left.append(f"{where} ended with {skipped:,} records to do")
        elif trained < place.of:
            left.append(f"pass {number} ended at record {trained:,} of {place.of:,}")
        if place.of and trained > place.of:
            unseen, trained = unseen + trained - place.of, place.of
        found.append(AuditedPass(number, trained, place.of))
    if places and (skipped := places[0][1].left):
        left.insert(0, f"passes before pass {places[0][0]} ended with {skipped:,} records to do")
    return found, unseen, left
