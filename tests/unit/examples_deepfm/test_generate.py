"""The planted truth is what the description says, and the files hold it."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from torch_edl.metrics import AUC


@pytest.mark.parametrize("ids", [100, 1_000_000])
@pytest.mark.parametrize("exponent", [1.0, 1.2])
def test_ranks_follow_zipfs_law(generate: Any, ids: int, exponent: float) -> None:
    ranks = generate.Zipf(ids, exponent).draw(np.random.default_rng(0), (200_000,))
    law = np.arange(1, ids + 1, dtype=np.float64) ** -exponent
    law /= law.sum()
    assert ranks.min() == 0
    assert ranks.max() < ids
    borders = [0, 1, 2, 5, 20, 90, 1_000, 65_536, 200_000, ids]
    for low, high in itertools.pairwise(borders):
        expected = law[low:high].sum()
        share = np.mean((ranks >= low) & (ranks < high))
        assert share == pytest.approx(expected, abs=5 * np.sqrt(expected / len(ranks)) + 1e-9)


def test_the_logit_is_the_factorisation_machine_over_all_pairs(generate: Any) -> None:
    truth = generate.Truth(ids=50, dense_std=0.0)
    none = np.zeros((1, generate.DENSE), np.float32)

    def logit(*ids: int) -> float:
        return float(truth.logits(np.array([ids], np.int64), none)[0]) - nothing

    # Only the logits are known from outside, so the parts are found as differences.
    nothing = float(truth.logits(np.empty((1, 0), np.int64), none)[0])
    for ids in ([1, 2, 3], [4, 4, 7, 9]):
        pairs = [(a, b) for k, a in enumerate(ids) for b in ids[k + 1 :]]
        singles = sum(logit(i) for i in ids)
        expected = singles + sum(logit(a, b) - logit(a) - logit(b) for a, b in pairs)
        assert logit(*ids) == pytest.approx(expected, abs=1e-5)


def test_the_effects_of_ids_have_the_promised_spread(generate: Any) -> None:
    truth = generate.Truth(dense_std=0.0)
    ids = np.arange(100_000, dtype=np.int64)
    none = np.zeros((100_000, generate.DENSE), np.float32)
    single = truth.logits(ids[:, None], none)
    assert single.std() == pytest.approx(truth.weight_std, rel=0.01)
    pair = truth.logits(np.stack([ids, ids[::-1]], 1), none)
    nothing = truth.logits(np.empty((1, 0), np.int64), none[:1])
    product = pair - single - single[::-1] + nothing
    assert product.std() == pytest.approx(generate.FACTORS**0.5 * truth.factor_std**2, rel=0.02)


def test_records_are_a_function_of_seed_and_part(generate: Any) -> None:
    truth = generate.Truth(ids=1_000)
    first, again = generate.records(truth, 500, 0), generate.records(truth, 500, 0)
    assert np.array_equal(first.ids, again.ids)
    assert np.array_equal(first.labels, again.labels)
    assert not np.array_equal(first.ids, generate.records(truth, 500, 1).ids)
    other = generate.Truth(ids=1_000, seed=1)
    assert not np.array_equal(first.logits, other.logits(first.ids, first.dense))


def test_each_column_has_its_own_favourite_and_all_ids_are_legal(generate: Any) -> None:
    made = generate.records(generate.Truth(ids=1_000), 5_000, 0)
    assert made.ids.min() >= 0
    assert made.ids.max() < 1_000
    favourites = {int(np.bincount(column).argmax()) for column in made.ids.T}
    assert len(favourites) == generate.CATEGORICAL


def test_labels_are_drawn_with_the_true_probability(generate: Any) -> None:
    made = generate.records(generate.Truth(ids=1_000), 50_000, 0)
    probability = 1 / (1 + np.exp(-made.logits))
    for low in (0.0, 0.1, 0.3, 0.6):
        inside = (probability >= low) & (probability < low + 0.3)
        assert made.labels[inside].mean() == pytest.approx(probability[inside].mean(), abs=0.02)


def test_files_and_metadata(generate: Any, tmp_path: Path) -> None:
    truth = generate.Truth(ids=1_000)
    generate.generate(tmp_path, truth, train=2_500, held_out=1_200, per_file=1_000)
    about = json.loads((tmp_path / "metadata.json").read_text())
    assert sorted(p.name for p in tmp_path.glob("*.parquet")) == [
        "eval-00000.parquet",
        "eval-00001.parquet",
        "train-00000.parquet",
        "train-00001.parquet",
        "train-00002.parquet",
    ]
    auc, losses, seen = AUC(), [], 0
    for file in sorted(tmp_path.glob("train-*.parquet")):
        table = pq.read_table(file)
        ids = np.stack([table.column(f"c{k}").to_numpy() for k in range(26)], 1)
        dense = np.stack([table.column(f"d{k}").to_numpy() for k in range(13)], 1)
        labels = table.column("label").to_numpy()
        assert (ids.dtype, dense.dtype, labels.dtype) == (np.int64, np.float32, np.float32)
        logits = truth.logits(ids, dense)
        auc.update(torch.from_numpy(labels.copy()), torch.from_numpy(logits))
        losses.append(np.logaddexp(0, logits) - labels * logits)
        seen += table.num_rows
        mine = json.loads(table.schema.metadata[b"deepfm"])
        assert mine["records"] == table.num_rows
        assert mine["seed"] == truth.seed
    assert about["train"]["records"] == seen == 2_500
    assert about["train"]["best_auc"] == pytest.approx(auc.compute(), abs=1e-9)
    assert about["train"]["best_loss"] == pytest.approx(float(np.concatenate(losses).mean()))
    assert about["eval"]["records"] == 1_200


@pytest.mark.parametrize(("flag", "value"), [("--records", "0"), ("--ids", "5")])
def test_wrong_sizes_are_refused(
    generate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        generate.main(["--out", str(tmp_path / "out"), flag, value])
    assert stop.value.code == 2
    assert f"{flag} {value}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
