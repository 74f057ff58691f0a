"""A scheduler that is told a loss: the same number in every process, or their rates would part."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import TensorDataset

import torch_edl
from tests.unit.api.counting import go_on, joining, waiting
from tests.unit.engine.ring.rings import Member, office
from torch_edl.errors import UsageError

EPOCHS = 6


def data(seed: int, records: int = 40) -> TensorDataset:
    x = torch.randn(records, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.sum(1, keepdim=True))


def plateau(optimizer: torch.optim.Optimizer) -> ReduceLROnPlateau:
    """Nothing is ever better by so much: a lower rate after each epoch but the first."""
    return ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)


def trainer(job: torch_edl.Job | None = None, **options: Any) -> torch_edl.ElasticTrainer:
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return torch_edl.ElasticTrainer(
        model,
        nn.MSELoss(),
        optimizer,
        scheduler=plateau(optimizer),
        **{"scheduler_interval": "epoch", "job": job, **options},
    )


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_plateau_judges_the_loss_of_the_evaluation_or_of_training(evaluated: bool) -> None:
    made = trainer()
    rates = []

    class Rates:
        def on_epoch_end(self, epoch: int, figures: dict[str, float]) -> None:
            rates.append((made.optimizer.param_groups[0]["lr"], made.scheduler.best))

    made._callbacks.append(Rates())
    other = data(2) if evaluated else None
    history = made.fit(data(1), batch_size=8, epochs=4, eval_dataset=other, verbose=False)
    judge = plateau(torch.optim.SGD([torch.zeros(1)], lr=0.01))
    expected = []
    for figures in history:
        judge.step(figures["eval_loss" if evaluated else "loss"])
        expected.append((judge.optimizer.param_groups[0]["lr"], judge.best))
    assert rates == expected
    assert len({rate for rate, _ in rates}) > 2


def test_a_plateau_for_each_update_is_refused() -> None:
    with pytest.raises(UsageError, match="write scheduler_interval='epoch'"):
        trainer(scheduler_interval="step")


def elastic(member: Member, wait_in: int) -> None:
    """Members whose parts of the data are unlike; two wait for a third in the middle of one."""
    made = trainer(member.job(check_every=1))

    class Wait:
        def on_batch_end(self, step: int, loss: float) -> None:
            if step == 5 * wait_in + 2 and len(member.seats) == 1 and member.worker < 2:
                member.tell("there")
                member.hear()

    made._callbacks.append(Wait())
    history = made.fit(
        data(1), batch_size=8, global_batch_size=8, epochs=EPOCHS, eval_dataset=data(2, 31),
        shuffle=True, verbose=False,
    )  # fmt: skip
    state = {k: v for k, v in made.scheduler.state_dict().items() if k != "optimizer"}
    evaluations = [figures["eval_loss"] for figures in history]
    member.tell((json.dumps(state), made.optimizer.param_groups[0]["lr"], evaluations))
    made.job.close()


@pytest.mark.parametrize("wait_in", [1, 3])
def test_a_plateau_steps_alike_in_all_and_in_who_joins_late(wait_in: int) -> None:
    with office(2) as one:
        members = waiting(one, elastic, wait_in, said="there")
        joiner = joining(one, elastic, wait_in)
        go_on(members)
        ends = [each.hear() for each in [*members, joiner]]
        assert ends == [ends[0]] * 3
        state = json.loads(ends[0][0])
        assert state["last_epoch"] == EPOCHS
        assert state["best"] in ends[0][2]
