"""Which folder is the newest checkpoint, and which ones go."""

from __future__ import annotations

from pathlib import Path

from torch_edl.checkpoint import layout


def make(root: Path, *steps: int) -> None:
    for step in steps:
        folder = layout.step_dir(root, step)
        folder.mkdir(parents=True)
        (folder / layout.MANIFEST).touch()


def test_the_newest_has_the_most_steps_however_many_digits_they_have(tmp_path: Path) -> None:
    make(tmp_path, 9, 9_999_999_999, 10_000_000_000)
    newest = layout.step_dir(tmp_path, 10_000_000_000)
    assert layout.newest(tmp_path) == newest
    layout.prune(tmp_path, 1)
    assert list(tmp_path.iterdir()) == [newest]


def test_what_is_half_written_goes_unless_it_is_newer(tmp_path: Path) -> None:
    make(tmp_path, 2, 4, 6)
    for step in (1, 5, 7):
        layout.step_dir(tmp_path, step).mkdir()
    (tmp_path / "step-best").mkdir()  # the user's copy
    layout.prune(tmp_path, 2)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["step-0000000004", "step-0000000006", "step-0000000007", "step-best"]
    assert layout.newest(tmp_path / "nothing") is None
