"""Ids are found without a run of the model where they are plainly a part of the features. Whatever
the model does, each lookup counts once: a row is the number of times that its id was looked up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torch_edl
from tests.unit.engine.servers.trained import IDS, Trained, rows_of
from torch_edl.errors import UsageError
from torch_edl.interfaces import Batch
from torch_edl.wire import master_pb2 as pb

BATCHES = 16


class Counting(nn.Module):
    """Looks up what ``chosen`` makes of the ids (n, 4), in two tables."""

    def __init__(self, chosen: Callable[[Counting, torch.Tensor], list[torch.Tensor]]) -> None:
        super().__init__()
        self.wide = torch_edl.nn.Embedding(None, 1, initializer="zeros")
        self.deep = torch_edl.nn.Embedding(None, 1, initializer="zeros")
        self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
        self.chosen = chosen
        self.runs = self.forwards = 0
        self.counts: Counter[tuple[str, int]] = Counter()

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        if self.chosen is late_change and self.forwards > 8:
            dense.mul_(2)
        looked_up = self.chosen(self, ids)
        found = [(self.wide, self.deep)[n % 2](each).sum() for n, each in enumerate(looked_up)]
        if torch.is_grad_enabled():  # the real run
            self.forwards += 1
            for number, each in enumerate(looked_up):
                name = ("wide", "deep")[number % 2]
                self.counts.update((name, id) for id in each.flatten().tolist())
        return torch.stack(found).sum() * self.scale


def columns(_: Counting, ids: torch.Tensor) -> list[torch.Tensor]:
    return [ids[:, 1], ids[:, 2:], ids]


def computed(_: Counting, ids: torch.Tensor) -> list[torch.Tensor]:
    return [ids[:, 1], ids[:, 2] + 1]


def another_column(model: Counting, ids: torch.Tensor) -> list[torch.Tensor]:
    return [ids[:, 0 if model.forwards < 8 else 3], ids[:, 1]]


def fewer(model: Counting, ids: torch.Tensor) -> list[torch.Tensor]:
    return [ids[:, 0], ids[:, 1]] if model.forwards < 8 else [ids[:, 0]]


def more(model: Counting, ids: torch.Tensor) -> list[torch.Tensor]:
    return [ids[:, 0]] if model.forwards < 8 else [ids[:, 0], ids[:, 1]]


def by_value(_: Counting, ids: torch.Tensor) -> list[torch.Tensor]:
    return [ids[:, int(ids[0, 0]) % 2], ids[:, 2]]


def by_turns(model: Counting, ids: torch.Tensor) -> list[torch.Tensor]:
    return [ids[:, model.forwards % 4], ids[:, 2]]


def late_change(_: Counting, ids: torch.Tensor) -> list[torch.Tensor]:
    return [ids[:, 0], ids[:, 1]]


def _batches(sizes: list[int]) -> list[Batch]:
    # As the feeder cuts them: slices of the tensors of a whole task.
    torch.manual_seed(0)
    ids, dense = torch.randint(0, IDS - 1, (sum(sizes), 4)), torch.rand(sum(sizes), 2)
    parts = zip(ids.split(sizes), dense.split(sizes), strict=True)
    return [Batch(part, None, len(part[0])) for part in parts]


def _train(
    chosen: Callable[[Counting, torch.Tensor], list[torch.Tensor]],
    servers: list[pb.Server],
    sizes: list[int],
    **how: int,
) -> Counting:
    model = Counting(chosen)
    each = how.pop("each", 1)
    made = Trained(model, lambda p: torch.optim.SGD(p, lr=1.0), servers, local_steps=each, **how)
    made.step._loss = lambda labels, predictions: -predictions
    made.train(_batches(sizes), each)
    for table in ("wide", "deep"):
        rows = rows_of(made, table, 1).flatten().tolist()
        assert rows == [model.counts[table, id] for id in range(IDS)]
    made.engine.close()
    return model


@pytest.mark.parametrize("staleness", [0, 1])
def test_columns_are_found_without_a_run(
    start_servers: Callable[..., list[pb.Server]], staleness: int
) -> None:
    model = _train(columns, start_servers(2), [8] * BATCHES, staleness=staleness)
    # The first run says whether the model changes its features, three more agree on the ids.
    assert model.runs == BATCHES + 4


def test_each_layout_is_learned(start_servers: Callable[..., list[pb.Server]]) -> None:
    model = _train(columns, start_servers(1), [8, 8, 8, 5] * 6, staleness=0)
    assert model.runs == 24 + 4 + 3


@pytest.mark.parametrize("chosen", [computed, by_value, by_turns])
def test_ids_that_are_no_part_of_the_features_need_a_run(
    start_servers: Callable[..., list[pb.Server]],
    chosen: Callable[[Counting, torch.Tensor], list[torch.Tensor]],
) -> None:
    model = _train(chosen, start_servers(1), [8] * BATCHES, staleness=0)
    assert model.runs == 2 * BATCHES


@pytest.mark.parametrize("how", [{"staleness": 0}, {"staleness": 1}, {"each": 4, "staleness": 1}])
@pytest.mark.parametrize("chosen", [another_column, fewer, more])
def test_a_model_that_changes_is_run_again(
    start_servers: Callable[..., list[pb.Server]],
    chosen: Callable[[Counting, torch.Tensor], list[torch.Tensor]],
    how: dict[str, int],
) -> None:
    model = _train(chosen, start_servers(1), [8] * 2 * BATCHES, **how)
    assert model.runs > 2 * BATCHES + 4


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_late_change_of_features_in_place_is_refused(
    start_servers: Callable[..., list[pb.Server]], staleness: int
) -> None:
    with pytest.raises(UsageError, match="did not change the first one"):
        _train(late_change, start_servers(1), [8] * BATCHES, staleness=staleness)
