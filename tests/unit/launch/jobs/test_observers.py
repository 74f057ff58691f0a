"""The observers of a job, which come from a package of their own."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.installed import install
from torch_edl.config import JobConfig, extensions
from torch_edl.errors import UsageError
from torch_edl.events import Event, ModelEvaluated, ProcessChanged, StrategyChosen
from torch_edl.interfaces import Observer
from torch_edl.launch.jobs import observers
from torch_edl.launch.jobs.observers import Observers
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.event_messages import to_message

received: list[tuple[Any, ...]] = []
go_on = threading.Event()


class Recorded(Observer):
    def __init__(self, value: str) -> None:
        received.append(("made", value))

    def begin(self, job: JobConfig) -> None:
        received.append(("begin", json.loads(job.to_json())["name"]))

    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        received.append((step, dict(values)))

    def event(self, time: float, event: Event) -> None:
        received.append((time, event))

    def end(self, state: str, error: str) -> None:
        received.append(("end", state, error))


class Broken(Observer):
    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        raise RuntimeError(f"no room for step {step}")


class BrokenFromTheStart(Recorded):
    def __init__(self, value: str) -> None:
        raise OSError("no server")


class Slow(Observer):
    def scalars(self, step: int, time: float, values: Mapping[str, float]) -> None:
        go_on.wait()


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that offers the observers above."""
    kinds = (Recorded, Broken, BrokenFromTheStart, Slow)
    names = "".join(f"{kind.__name__} = {__name__}:{kind.__name__}\n" for kind in kinds)
    install(tmp_path, "watchers", f"[torch_edl.observers]\n{names}")
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions.by_group.cache_clear()
    received.clear()
    go_on.clear()
    yield
    extensions.by_group.cache_clear()


def job(*observe: str, kind: str = "train") -> JobConfig:
    return JobConfig(name="j", kind=kind, model_file="/m.py", observe=observe)


def status(**fields: Any) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(kind="train", state="running", **fields)


def steps() -> list[tuple[Any, ...]]:
    return [each for each in received if isinstance(each[0], int)]


def test_an_observer_receives_the_job_from_begin_to_end() -> None:
    worker = pb.ProcessStatus(role="worker", id=3, pid=7, state="running")
    runs = ProcessChanged(process="worker-3", pid=7, state="running")
    chosen = StrategyChosen(strategy="ps", reason="asked for")
    log = [to_message(runs, 1, 4.0), to_message(chosen, 2, 5.0)]
    with Observers(job("Recorded=x=y")) as watched:
        first = status(
            steps=4, loss=0.5, processes=[worker], events=log, rates={"steps_per_s": 2.0}
        )
        watched.update(first)
        watched.update(first)
        watched.end("failed", "no more data")
    assert received == [
        ("made", "x=y"),
        ("begin", "j"),
        (4.0, runs),
        (5.0, chosen),
        (4, {"train/loss": 0.5, "train/workers": 1, "rate/steps_per_s": 2.0}),
        ("end", "failed", "no more data"),
    ]


def test_scalars_come_once_a_second_and_at_the_end() -> None:
    now = 0.0
    with Observers(job("Recorded"), clock=lambda: now) as watched:
        for tick in range(12):
            now = tick / 5
            seen = status(steps=tick + 1, loss=2.0**-tick)
            if tick >= 3:
                for number, value in ((3, 0.5), (4, None)):
                    evaluated = ModelEvaluated(steps=number, metrics={"auc": value})
                    seen.events.append(to_message(evaluated, number, 1.0))
            watched.update(seen)
    losses = [(step, v["train/loss"]) for step, v in steps() if "train/loss" in v]
    assert losses == [(1, 1.0), (6, 2.0**-5), (11, 2.0**-10), (12, 2.0**-11)]
    first, second = [(step, v) for step, v in steps() if "eval/auc" in v]
    assert first == (3, {"eval/auc": 0.5})
    assert (second[0], math.isnan(second[1]["eval/auc"])) == (4, True)


def test_a_script_has_what_it_logged() -> None:
    with Observers(job("Recorded", kind="script")) as watched:
        watched.update(pb.GetStatusResponse(kind="script", steps=3, logged={"lr": 0.25}))
    assert steps() == [(3, {"train/lr": 0.25, "train/workers": 0})]


def test_without_new_steps_there_are_no_scalars() -> None:
    now = 0.0
    with Observers(job("Recorded"), clock=lambda: now) as watched:
        for tick in range(5):
            now = float(tick)
            watched.update(status(steps=7))
    assert [step for step, _ in steps()] == [7]


def test_a_loss_that_arrives_after_its_step_is_passed_on() -> None:
    """The last step of a job that takes a second may be known before its loss."""
    with Observers(job("Recorded"), clock=lambda: 0.0) as watched:
        watched.update(status(steps=7, loss=math.nan))
        watched.update(status(steps=7, loss=0.5))
    losses = [values["train/loss"] for _, values in steps()]
    assert (len(losses), losses[-1]) == (2, 0.5)


@pytest.mark.parametrize("name", ["Broken", "BrokenFromTheStart"])
def test_an_observer_that_fails_loses_its_own_items_and_warns_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    with Observers(job(name, "Recorded"), clock=lambda: now) as watched:
        for tick in range(3):
            now = float(tick)
            watched.update(status(steps=tick + 1))
        watched.end("finished")
    assert [step for step, _ in steps()] == [1, 2, 3]
    (warning,) = caplog.messages
    assert warning.startswith(f"--observe {name}: ")


def test_an_observer_that_is_slow_loses_its_own_items_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    with Observers(job("Slow"), clock=lambda: now) as watched:
        for tick in range(observers._QUEUE_ITEMS + 10):
            now = float(tick)
            watched.update(status(steps=tick + 1))
            if tick == observers._QUEUE_ITEMS + 5:
                assert [message[:15] for message in caplog.messages] == ["--observe Slow:"]
        go_on.set()
        watched.end("finished")
    assert len(caplog.messages) == 1


def test_an_observer_that_does_not_end_is_left_behind(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Observer, "END_S", 0.01)
    with Observers(job("Slow")) as watched:
        watched.update(status(steps=1))
    assert len(caplog.messages) == 1
    go_on.set()


@pytest.mark.parametrize("value", ["nobody=x", "=x"])
def test_an_observer_that_is_not_installed_is_rejected(value: str) -> None:
    with pytest.raises(UsageError, match=r"^--observe "):
        observers.checked(job(value))
