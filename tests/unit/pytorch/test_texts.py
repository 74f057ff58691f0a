"""Texts as records: a list of them means files, and the error says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torch_edl.errors import UsageError
from torch_edl.pytorch.batches import open_batches

TEXTS = ["the cat sat", "on the mat", "and looked"]
DATA = {
    "batch_size": 2, "epochs": 1, "shuffle": False, "accumulate": 1, "global_batch_size": 0,
    "drop_last": False, "seed": 0,
}  # fmt: skip


@pytest.mark.parametrize("texts", [TEXTS, tuple(TEXTS), ["long " * 5000], []])
def test_texts_in_a_list_are_said_to_be_taken_for_files(texts: Any) -> None:
    with pytest.raises(UsageError, match=r"a list of str names data files; .*\[\{'text'") as error:
        open_batches(texts, DATA, 0, {})
    assert len(str(error.value)) < 500


def test_of_one_path_only_the_path_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file") as error:
        open_batches(tmp_path / "none.csv", DATA, 0, {})
    assert "a list of str" not in str(error.value)


def test_the_remedy_that_is_named_works() -> None:
    batches: Any = open_batches([{"text": text} for text in TEXTS], DATA, 0, {})
    assert batches.take((0, 2), 0, 0, 1) == {"text": TEXTS[:2]}
    batches.close()
