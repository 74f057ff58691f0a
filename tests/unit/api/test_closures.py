"""``optimizer.step(closure)``: the closure computes the gradients, and they count as any others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.unit.api.counting import counted, numbers, told
from tests.unit.api.served import Count, prepared
from tests.unit.engine.ring.rings import Member
from torch_edl.errors import UsageError
from torch_edl.wire.channel import Stub


def train(job: Any, model: Any, optimizer: Any, loader: Any) -> list[float]:
    losses = []
    for (batch,) in loader:

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(batch)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


def gathering(member: Member) -> None:
    """Minibatches of 4 are gathered to updates of 16."""
    job = member.job()
    model, optimizer = counted(32, 16, job)
    loader = job.loader(numbers(32), batch_size=4, global_batch_size=16)
    losses = train(job, model, optimizer, loader)
    member.tell((model.w.tolist(), job.step, len(losses)))
    job.close()


@pytest.mark.parametrize("world", [1, 2])
def test_a_closure_counts_each_record_of_an_update_once(world: int) -> None:
    assert told(world, gathering) == [([1.0] * 32, 2, 8 // world)] * world


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimization (Foret et al. 2021): the gradient at the worst point nearby."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        moved = [(p, p.grad / (p.grad.norm() + 1e-12)) for p in self.param_groups[0]["params"]]
        for parameter, way in moved:
            parameter.add_(way)
        with torch.enable_grad():
            closure()
        for parameter, way in moved:
            parameter.sub_(way).sub_(self.param_groups[0]["lr"] * parameter.grad)
        return loss


REPEATING: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sam": lambda params: Sam(params, 0.1),
    "lbfgs": lambda params: torch.optim.LBFGS(params, 0.1, max_iter=5),
}


def curved(batch: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    return (model(batch).exp() - batch.sum(1, keepdim=True)).square().mean()


def descend(model: torch.nn.Module, optimizer: Any, loader: Any) -> torch.Tensor:
    for (batch,) in loader:

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = curved(batch, model)
            loss.backward()
            return loss

        optimizer.step(closure)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("kind", REPEATING)
def test_closures_that_run_several_times_equal_a_plain_loop_in_one_process(
    jobs: Any, kind: str
) -> None:
    data = TensorDataset(torch.rand(24, 3, generator=torch.Generator().manual_seed(0)))
    plain, ours = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    ours.load_state_dict(plain.state_dict())
    expected = descend(plain, REPEATING[kind](plain.parameters()), DataLoader(data, batch_size=4))
    job = jobs()
    _, optimizer = job.prepare(ours, REPEATING[kind](ours.parameters()))
    assert torch.equal(descend(ours, optimizer, job.loader(data, batch_size=4)), expected)
    assert job.step == 6


@pytest.mark.parametrize("kind", REPEATING)
def test_closures_that_run_several_times_do_not_accumulate(jobs: Any, kind: str) -> None:
    job, model = jobs(), torch.nn.Linear(3, 1)
    _, optimizer = job.prepare(model, REPEATING[kind](model.parameters()))
    loader = job.loader(TensorDataset(torch.rand(24, 3)), batch_size=4, accumulate=2)
    with pytest.raises(UsageError, match="a single process without accumulated batches only"):
        descend(model, optimizer, loader)


def repeating(member: Member) -> None:
    job, model = member.job(), torch.nn.Linear(3, 1)
    _, optimizer = job.prepare(model, Sam(model.parameters(), 0.1))
    said = ""
    try:
        descend(model, optimizer, job.loader(TensorDataset(torch.rand(8, 3)), batch_size=4))
    except UsageError as error:
        said = str(error)
    member.tell(said)
    member.hear()


def test_closures_that_may_run_several_times_are_refused_in_a_ring() -> None:
    (said,) = told(1, repeating)
    assert "Sam.step(closure): it may compute" in said


def test_servers_get_the_gradients_of_a_closure(start: Callable[..., Stub]) -> None:
    start(servers=1)
    job, model, optimizer = prepared(Count())
    loader = job.loader(numbers(32), batch_size=4)
    assert len(train(job, model, optimizer, loader)) == 8
    state = job.state_dict()
    assert state["weight"].item() == 32
    assert state["rows.vectors"].flatten().tolist() == [1.0] * 32
    job.close()
