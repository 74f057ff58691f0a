"""Raw logs: what the generator hides in them is what the columns of the model file find."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torch_edl.pytorch.contract import load_contract

EXAMPLE = Path(__file__).parents[3] / "examples" / "deepfm"


def test_the_columns_of_raw_logs(generate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["model_raw.py"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "model", raising=False)
    contract = load_contract(str(EXAMPLE / "model_raw.py"))
    made = generate.records(generate.Truth(ids=200), 4_000, 0)
    table = generate.raw_table(made)
    assert table.column_names[::13] == ["label", "I13", "C13", "C26"]
    assert table["C1"].null_count > 0
    assert table["I1"].null_count > 0
    assert contract.preprocessing is not None
    contract.preprocessing.fit(table)
    (ids, dense), labels = contract.feed(table, "training", None)
    assert torch.equal(labels, torch.from_numpy(made.labels))
    # A text is one id within its column, and another one in any other column.
    texts = [{(k, each) for each in made.ids[:, k].tolist()} for k in range(26)]
    assert len(ids.unique()) == sum(map(len, texts))
    for k in range(26):
        pairs = set(zip(made.ids[:, k].tolist(), ids[:, k].tolist(), strict=True))
        assert len(pairs) == len(texts[k])
    assert dense.mean(0) == pytest.approx([0] * 13, abs=0.02)
    for k in range(13):
        assert np.corrcoef(dense[:, k], made.dense[:, k])[0, 1] > 0.98
    inputs = contract.feed(table.drop(["label"]), "prediction", None)
    assert torch.equal(inputs[0], ids)
    model = contract.make_model()
    assert sum(p.numel() for p in model.parameters()) > 0
    sys.modules.pop("model")
