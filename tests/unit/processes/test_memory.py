"""A process that the kernel is to end first when memory is short."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.processes import memory

SCORE = Path("/proc/self/oom_score_adj")


def test_the_score_is_as_before_afterwards() -> None:
    before = SCORE.read_text()
    with memory.expendable():
        assert SCORE.read_text() == "1000\n"
    assert SCORE.read_text() == before
    with pytest.raises(KeyError), memory.expendable():
        raise KeyError
    assert SCORE.read_text() == before


def test_without_such_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_SCORE", tmp_path / "none" / "score")
    with memory.expendable():
        pass
