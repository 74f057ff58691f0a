"""A replica described, written and taken over is the same replica, bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

import torch_edl
from torch_edl.checkpoint import layout, tensor_files
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.checkpoint.tensor_files import MODEL_FILE, OPTIMIZER_FILE
from torch_edl.engine.ring import membership
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.pytorch import replica as replicas
from torch_edl.pytorch.replica import Replica, State

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, betas=(0.8, 0.9)),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: schedulers.StepLR(o, 3),
    "milestones": lambda o: schedulers.MultiStepLR(o, [2, 7, 7, 9]),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 20),
    "restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4),
    "cycle": lambda o: schedulers.OneCycleLR(o, 0.5, 40),
    "triangle": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "linear": lambda o: schedulers.LinearLR(o, total_iters=8),
    "exponential": lambda o: schedulers.ExponentialLR(o, 0.9),
    "sequence": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, total_iters=3), schedulers.MultiStepLR(o, [3, 5])], [3]
    ),
    "chain": lambda o: schedulers.ChainedScheduler(
        [schedulers.LinearLR(o, total_iters=3), schedulers.MultiStepLR(o, [3, 5])], o
    ),
}


class Parts:
    """A script: a model with running statistics, an optimizer of two groups, a scheduler."""

    def __init__(self, optimizer: str, scheduler: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
        weights = [p for n, p in self.model.named_parameters() if "weight" in n]
        others = [p for n, p in self.model.named_parameters() if "weight" not in n]
        groups = [{"params": weights, "weight_decay": 0.01}, {"params": others, "lr": 0.02}]
        self.optimizer = OPTIMIZERS[optimizer](groups)
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        self.replica = Replica(self.model, [self.optimizer], [self.scheduler, self.scaler])

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(8, 4, generator=generator)).pow(2).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.replica.position.step += 1


def same(one: State, other: State) -> None:
    # A file may name the tensors in another order.
    headers = [{k: v for k, v in s.header.items() if k != "tensors"} for s in (one, other)]
    assert headers[0] == headers[1]
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert tensor.dtype == other.tensors[name].dtype, name
        assert torch.equal(tensor, other.tensors[name]), name


def through_json(state: State) -> State:
    """Return a state as another member receives it."""
    return State(json.loads(json.dumps(state.header)), state.tensors)


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [*((name, "step") for name in OPTIMIZERS), *(("sgd", name) for name in SCHEDULERS)],
)
def test_a_state_that_was_taken_over_goes_on_like_its_source(
    optimizer: str, scheduler: str
) -> None:
    source, joiner = Parts(optimizer, scheduler, 1), Parts(optimizer, scheduler, 2)
    for number in range(5):
        source.step(number)
    source.replica.position.results["0"] = {"loss": 0.1}
    joiner.replica.load(through_json(source.replica.copy()))
    same(source.replica.state(), joiner.replica.state())
    for number in range(5, 12):
        source.step(number)
        joiner.step(number)
    same(source.replica.state(), joiner.replica.state())
    assert source.replica.digest() == joiner.replica.digest()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_state_that_was_written_is_read_bit_by_bit(optimizer: str, tmp_path: Path) -> None:
    source, other = Parts(optimizer, "milestones", 1), Parts(optimizer, "milestones", 2)
    for number in range(3):
        source.step(number)
    state = source.replica.copy()
    wanted = source.replica.copy()
    source.step(3)
    commit(state, tmp_path)
    other.replica.load(replicas.read(tmp_path))
    same(wanted, other.replica.state())
    other.step(3)
    same(source.replica.state(), other.replica.state())


def commit(state: State, folder: Path) -> None:
    files = replicas.write(state, folder)
    manifest = Manifest(job="", strategy="allreduce", steps=3, shards=1, files=files)
    layout.seal(folder, manifest)


def test_the_file_of_the_model_is_a_plain_state_dict(tmp_path: Path) -> None:
    source = Parts("adam", "step", 1)
    source.step(0)
    commit(source.replica.copy(), tmp_path)
    values = replicas.read_model(tmp_path)
    assert values.keys() == source.model.state_dict().keys()
    source.model.load_state_dict(values)


class Odd(nn.Module):
    """Shared and not contiguous parameters, of several types, one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(5, 3).T)
        self.b = self.a
        self.c = nn.Parameter(torch.randn(3, dtype=torch.bfloat16))
        self.d = nn.Parameter(torch.randn(()))
        self.e = nn.Parameter(torch.zeros(0, 4))
        self.register_buffer("f", torch.tensor([True, False]))
        self.register_buffer("g", torch.tensor(7))


def test_parameters_of_any_shape_and_type_travel_and_are_written(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one, two = Odd(), Odd()
    source = Replica(one, [])
    state = source.state()
    header, tensors = source.outgoing()
    buffers = [buffer for buffer, _ in membership.chunks(tensors, 40)]
    assert len(buffers) > 1
    places, take = Replica(two, []).incoming(header)
    for (into, group), buffer in zip(membership.chunks(places, 40), buffers, strict=True):
        into[:] = buffer
        membership.spread(into, group)
    take()
    same(state, Replica(two, []).state())
    assert two.a is two.b
    commit(source.copy(), tmp_path)
    same(source.copy(), replicas.read(tmp_path))


def test_a_state_of_another_script_is_refused_and_changes_nothing() -> None:
    source = Parts("adam", "step", 1)
    source.step(0)
    state = source.replica.state()
    others: dict[str, Replica] = {}
    wide = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.Linear(7, 2))
    groups = [{"params": [wide[0].weight, wide[1].weight, wide[2].weight]},
              {"params": [wide[0].bias, wide[1].bias, wide[2].bias]}]  # fmt: skip
    parts = [source.scheduler, source.scaler]
    others[r"weight is \(6, 4\) there"] = Replica(wide, [torch.optim.Adam(groups)], parts)
    deep = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    others["groups of"] = Replica(deep, [torch.optim.Adam(deep.parameters())], parts)
    others["it lacks"] = Parts("sgd", "step", 2).replica
    others["schedulers and scalers"] = Replica(wide, [torch.optim.Adam(groups)], parts[:1])
    others["1 optimizers"] = Replica(wide, [], parts)
    for words, other in others.items():
        before = Replica(other.model, other.optimizers).copy()
        with pytest.raises(CheckpointError, match=words):
            other.load(through_json(state))
        same(before, Replica(other.model, other.optimizers).state())


@pytest.mark.parametrize("name", [MODEL_FILE, OPTIMIZER_FILE])
def test_a_damaged_file_is_said_to_be_damaged(name: str, tmp_path: Path) -> None:
    source = Parts("adam", "step", 1)
    source.step(0)
    commit(source.replica.copy(), tmp_path)
    raw = bytearray((tmp_path / name).read_bytes())
    raw[-1] ^= 1
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(CheckpointError, match=f"{name}: the checksum of .* does not match"):
        replicas.read(tmp_path)
    (tmp_path / name).write_bytes(b"\xff" * len(raw))
    with pytest.raises(CheckpointError):
        replicas.read(tmp_path)


def test_the_files_are_those_of_safetensors(tmp_path: Path) -> None:
    model = Odd()
    commit(Replica(model, []).copy(), tmp_path)
    found = safetensors.torch.load_file(tmp_path / MODEL_FILE)
    wanted = model.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert value.dtype == wanted[name].dtype
        assert torch.equal(value, wanted[name])


def test_a_type_that_no_file_holds_is_named(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("z", torch.zeros(1, dtype=torch.complex128))
    with pytest.raises(UsageError, match=r"z: torch\.complex128 cannot be written"):
        replicas.write(Replica(model, []).copy(), tmp_path)


def test_a_digest_sees_a_single_bit() -> None:
    model = nn.Linear(3, 3)
    replica = Replica(model, [])
    before = replica.digest()
    with torch.no_grad():
        model.bias[0] = torch.nextafter(model.bias[0], torch.tensor(9.0))
    assert replica.digest() != before


class Rows(nn.Module):
    """Two tables of this process beside a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bounded = torch_edl.nn.Embedding(8, 2)
        self.unbounded = torch_edl.nn.Embedding(None, 2)
        self.dense = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([self.bounded(ids), self.unbounded(ids - 2**40)], dim=1)
        result: torch.Tensor = self.dense(rows)
        return result


def rows_and_optimizer(seed: int) -> tuple[Rows, Any, Replica]:
    torch.manual_seed(seed)
    model = Rows()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, optimizer, Replica(model, [optimizer])


def train(model: nn.Module, optimizer: Any, ids: list[int]) -> None:
    optimizer.zero_grad()
    model(torch.tensor(ids)).pow(2).sum().backward()
    optimizer.step()


def test_tables_of_this_process_are_restored_with_their_slots(tmp_path: Path) -> None:
    model, optimizer, replica = rows_and_optimizer(1)
    for ids in ([1, 2], [2, 3], [1, 3]):
        train(model, optimizer, ids)
    state = replica.copy()
    train(model, optimizer, [1, 2, 3, 4])  # after the copy

    def write(folder: Path) -> Manifest:
        files = replicas.write(state, folder)
        return Manifest(job="", strategy="local", steps=3, files=files)

    directory, manifest = layout.save(tmp_path, 3, write)
    again, its_optimizer, other = rows_and_optimizer(2)
    with pytest.raises(CheckpointError, match="a checkpoint of the strategy local"):
        CheckpointReader(directory)
    assert other.restore(directory, values_only=False) == manifest
    train(again, its_optimizer, [1, 2, 3, 4])
    wanted = model.state_dict()
    for name, value in again.state_dict().items():
        seen = [1, 2, 3, 4] if name == "bounded.weight" else slice(None)
        assert torch.equal(value[seen], wanted[name][seen]), name
    fresh, _, third = rows_and_optimizer(3)
    assert third.restore(directory, values_only=True) is None
    assert fresh.state_dict()["unbounded.ids"].tolist() == [1 - 2**40, 2 - 2**40, 3 - 2**40]
    # With the state of the optimizer (--load-optimizer), training goes on as if not interrupted.
    kept, its_optimizer, _ = rows_and_optimizer(4)
    fourth = Replica(kept, [its_optimizer], loads_optimizer=True)
    assert fourth.restore(directory, values_only=True) is None
    train(kept, its_optimizer, [1, 2, 3])
    model, optimizer, again_whole = rows_and_optimizer(5)
    again_whole.restore(directory, values_only=False)
    train(model, optimizer, [1, 2, 3])
    assert torch.equal(kept.state_dict()["bounded.weight"], model.state_dict()["bounded.weight"])
    assert torch.equal(kept.dense.weight, model.dense.weight)


@pytest.mark.parametrize("moment", ["before", "before the model's file", "before the tables"])
def test_a_checkpoint_that_its_job_prunes_while_another_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    model, optimizer, replica = rows_and_optimizer(1)
    train(model, optimizer, [1, 2])
    state = replica.copy()

    def save(steps: int) -> Path:
        def write(folder: Path) -> Manifest:
            return Manifest(
                job="", strategy="local", steps=steps, files=replicas.write(state, folder)
            )

        return layout.save(tmp_path, steps, write)[0]

    def prune() -> None:
        layout.prune(save(2), keep=1)

    chosen = save(1)
    removed = pytest.raises(
        CheckpointError, match=f"{chosen}: the checkpoint was removed after .*--keep-checkpoints"
    )
    if moment == "before":
        prune()
        with removed:
            CheckpointReader(chosen, values_only=True)
    elif moment == "before the tables":
        source = CheckpointReader(chosen, values_only=True)
        prune()
        assert model.bounded.local_rows is not None
        with removed:
            model.bounded.local_rows.restore(source)
    else:
        read_tensors = tensor_files.read_tensors

        def after_prune(path: Path, *names: Any) -> Any:
            prune()
            return read_tensors(path, *names)

        monkeypatch.setattr(tensor_files, "read_tensors", after_prune)
        with removed:
            replica.restore(chosen, values_only=True)


def test_the_state_of_an_optimizer_without_its_options(tmp_path: Path) -> None:
    """Another day's training begins its learning rate, schedule and position anew."""
    source = Parts("adam", "step", 1)
    for number in range(7):
        source.step(number)
    commit(source.replica.copy(), tmp_path)
    other = Parts("adam", "step", 2)
    for group in other.optimizer.param_groups:
        group["lr"] = 0.5
    begun = other.replica.state().header
    replica = Replica(other.model, [other.optimizer], other.replica.stateful, loads_optimizer=True)
    assert replica.restore(tmp_path, values_only=True) is None
    found, saved = replica.state(), source.replica.state()
    for name, tensor in saved.tensors.items():
        assert torch.equal(tensor, found.tensors[name]), name
    assert found.header["position"] == begun["position"]
    assert found.header["stateful"] == begun["stateful"]
    groups = [each.header["optimizers"][0]["groups"] for each in (found, saved)]
    assert groups[0] == begun["optimizers"][0]["groups"] != groups[1]
