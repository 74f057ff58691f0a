"""Objects beside model and optimizer that a script gives to ``prepare``: averages, curricula."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from tests.unit.api.counting import Count, finish, go_on, joining, numbers, train, waiting
from tests.unit.api.test_alone import network
from tests.unit.engine.ring.rings import Member, office
from torch_edl import ElasticTrainer
from torch_edl.api.job import Job
from torch_edl.errors import CheckpointError, UsageError


class Curriculum:
    """A state of all kinds of values."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.buffer = torch.zeros(3, 2)

    def update(self, batch: torch.Tensor) -> None:
        self.seen.append(len(self.seen))
        self.buffer[len(self.seen) % 3] += 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "buffer": self.buffer, "level": ("easy", {1: 0.5, "x": None})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["level"] == ("easy", {1: 0.5, "x": None})
        self.seen, self.buffer = list(state["seen"]), state["buffer"].clone()


def prepared(job: Job, **more: Any) -> tuple[Any, Any, Any, Any]:
    model = Count(40, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ema, curriculum = AveragedModel(model), Curriculum()
    job.prepare(model, optimizer, state={"ema": ema, "curriculum": curriculum, **more})
    return model, optimizer, ema, curriculum


def averaging(member: Member) -> None:
    job = member.job()
    model, optimizer, ema, curriculum = prepared(job)
    waits, bodies = True, 0
    for (batch,) in job.loader(numbers(40), batch_size=4, global_batch_size=8, epochs=2):
        bodies += 1
        if waits and job.step >= 3:
            member.tell(("step", job.step))
            waits = member.hear() != "on"
        train(model, optimizer, batch)
        ema.update_parameters(model)
        curriculum.update(batch)
    values = [value.tolist() for value in ema.state_dict().values()]
    state = curriculum.seen, curriculum.buffer.tolist()
    member.tell(("done", job.step, values, state, bodies))
    job.close()


def test_an_average_is_equal_in_all_processes_after_a_kill_and_a_join() -> None:
    with office(3) as one:
        members = waiting(one, averaging, said=("step", 3))
        members.pop().kill()
        members.append(joining(one, averaging))
        go_on(members)
        ends = finish(members)
    for _, step, values, (seen, buffer), _bodies in ends:
        assert (step, values[0]) == (10, 10)
        assert values == ends[0][2]
        assert (seen, buffer) == (list(range(10)), [[3.0] * 2, [4.0] * 2, [3.0] * 2])
    assert max(bodies for *_, bodies in ends) > 10, "the failed step came again"


def test_a_checkpoint_has_the_state(jobs: Any, tmp_path: Path) -> None:
    for epochs, first in ((1, 0), (2, 5)):
        job = jobs(checkpoint_dir=tmp_path, resume=True)
        model, optimizer, ema, curriculum = prepared(job)
        assert (int(ema.n_averaged), len(curriculum.seen)) == (first, first)
        for (batch,) in job.loader(numbers(40), batch_size=8, epochs=epochs):
            train(model, optimizer, batch)
            ema.update_parameters(model)
            curriculum.update(batch)
        job.close()
    assert (int(ema.n_averaged), curriculum.seen) == (10, list(range(10)))
    with pytest.raises(CheckpointError, match=r"'other'"):
        prepared(jobs(checkpoint_dir=tmp_path, resume=True), other=Curriculum())


def test_gathered_batches_count_as_one_update(jobs: Any) -> None:
    job = jobs()
    model, optimizer, ema, _ = prepared(job)
    for (batch,) in job.loader(numbers(40), batch_size=4, accumulate=2):
        train(model, optimizer, batch)
        ema.update_parameters(model)
    assert int(ema.n_averaged) == job.step == 5


def test_a_trainer_has_a_state_too(jobs: Any, tmp_path: Path) -> None:
    class Averaging:
        def __init__(self, ema: AveragedModel, model: Any) -> None:
            self.ema, self.model = ema, model

        def on_batch_end(self, step: int, loss: float) -> None:
            self.ema.update_parameters(self.model)

    data = torch.utils.data.TensorDataset(torch.randn(8, 6), torch.arange(8) % 3)
    for first in (0, 2):
        model = network()
        ema = AveragedModel(model)
        trainer = ElasticTrainer(
            model,
            torch.nn.functional.cross_entropy,
            torch.optim.SGD(model.parameters(), 0.1),
            callbacks=[Averaging(ema, model)],
            state={"ema": ema},
            checkpoint_dir=tmp_path,
            resume=True,
        )
        assert int(ema.n_averaged) == first
        trainer.fit(data, batch_size=4, epochs=1 + first, verbose=False)
        trainer.job.close()


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ([1], "state=: expected a dict"),
        ({"ema": 1}, "'ema': int has no state_dict"),
        ({"f": None}, "'f': NoneType has no state_dict"),
    ],
)
def test_an_object_without_a_state_is_refused(jobs: Any, state: Any, text: str) -> None:
    model = Count(4, 1)
    with pytest.raises(UsageError, match=text):
        jobs().prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), state=state)


def test_a_value_that_cannot_be_stored_is_refused(jobs: Any) -> None:
    class Wrong(Curriculum):
        def state_dict(self) -> dict[str, Any]:
            return {"made": object()}

    with pytest.raises(UsageError, match="its state has a object at made"):
        prepared(jobs(), wrong=Wrong())
