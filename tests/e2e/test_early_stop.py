"""Processes of a script on parameter servers agree on figures, and on when to stop."""

from __future__ import annotations

from pathlib import Path

from .conftest import Place

SCRIPT = Path(__file__).with_name("scripts") / "early_stop.py"


def test_all_ranks_see_the_same_figures_and_stop_in_the_same_epoch(place: Place) -> None:
    place(f"run --job-name early --ps 2 --workers 2 {SCRIPT} . 5")
    first, second = place.json("0.json"), place.json("1.json")
    assert first == second
    epochs = [figures["epoch"] for figures in first["history"]]
    assert epochs == [1, 2]
    assert first["final"]["auc"] == first["history"][-1]["eval_auc"]
