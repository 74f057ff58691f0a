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


def test_loops_of_the_script_validate_one_model_and_stop_together(place: Place) -> None:
    script = SCRIPT.with_name("early_loop.py")
    done = place(f"run --job-name loops --ps 2 --workers 2 {script} . 50")
    first, second = place.json("loop-0.json"), place.json("loop-1.json")
    losses = first["losses"]
    assert losses == second["losses"]
    assert 1 < len(losses) < 50
    assert losses[-1] > losses[-2]
    assert first["step"] + second["step"] == len(losses) * 150
    assert "left its loop" not in done.text
