"""The events of a job: their sentences, and their way through messages and files."""

from __future__ import annotations

import dataclasses

import pytest

from torch_edl import events
from torch_edl.errors import UsageError
from torch_edl.events import Event, Other, event_of
from torch_edl.wire import control_pb2 as pb
from torch_edl.wire import event_messages

SIGNAL_9 = {"way": "ended", "cause": "signal 9"}
EXAMPLES: list[tuple[Event, str]] = [
    (events.StrategyChosen(strategy="ps", reason="asked for"), "strategy ps: asked for"),
    (events.DeviceUsed(device="cuda:0"), "the first worker computes on cuda:0"),
    (events.TrainingResumed(checkpoint="/c/7"), "training continues from /c/7"),
    (events.NothingToResume(), "no checkpoint yet: training starts from the beginning"),
    (
        events.ModelLoaded(source="/m", with_optimizer=False),
        (
            "the model starts from /m: its values, without optimizer state "
            "(--load-optimizer also loads the state)"
        ),
    ),
    (events.TasksMade(records=1000, tasks=1, files=2), "1,000 records in 1 task, 2 files"),
    (
        events.NothingLeft(option="--epochs"),
        (
            "nothing is left to train: the checkpoint is of the end of the job; raise --epochs to "
            "continue from there"
        ),
    ),
    (
        events.JobScaled(workers_before=2, workers=4, servers_before=1, servers=2),
        "workers: 2 before, 4 from now on; parameter servers wanted: 1 before, 2 from now on",
    ),
    (events.JobStopping(reason="SIGINT"), "stopping: SIGINT"),
    (events.LastCheckpointMissing(why="no worker"), "no last checkpoint: no worker"),
    (events.JobFinished(), "finished"),
    (events.JobFailed(error="no data", traceback="Traceback"), "no data"),
    (events.MasterRestarted(workers=1), "the master was restarted: 1 worker continues"),
    (
        events.StateNotStored(error="disk full"),
        (
            "the state of the job cannot be kept: disk full; training continues; no process joins "
            "or starts until it can"
        ),
    ),
    (events.StateStoredAgain(), "the state of the job is kept again"),
    (events.RecordsDamaged(records=1234), "damaged records left out: 1,234"),
    (
        events.RecordsRemoved(partition="t/0", first=0, last=9),
        "t/0: the offsets 0 to 9 were removed before they were read, and are left out",
    ),
    (
        events.RecordsSkipped(blame="3 workers died of them"),
        "3 workers died of them; the records are left out (--skip-damaged)",
    ),
    (
        events.DataTouched(first="a.csv", files=3),
        (
            "a.csv and 2 more: written since the checkpoint, with the same size, first and last "
            "block; if other records are in there, start afresh with another --checkpoint-dir"
        ),
    ),
    (events.StreamsSilent(error="no broker"), "no new records for now: no broker"),
    (events.StreamsAnswer(), "the streams answer again"),
    (events.PreprocessingFitted(records=10), "preprocessing: fitted by 10 records"),
    (events.EpochDone(epoch=1, epochs=3), "epoch 1 of 3 is done"),
    (
        events.LimitReached(option="--max-steps", limit=9, epoch=1, epochs=3),
        "--max-steps 9 is reached after 1 of 3 epochs",
    ),
    (
        events.StoppedEarly(epoch=5, metric="auc", patience=2, best=0.8, best_epoch=3),
        "early stop after epoch 5: auc has not been better for 2 epochs than 0.8 after epoch 3",
    ),
    (
        events.ModelEvaluated(steps=500, metrics={"auc": 0.5, "loss": None}),
        "evaluation at step 500: auc 0.5, loss nan",
    ),
    (
        events.StepsLeftOut(left_out=9, steps=10),
        "--on-nan skip left 9 of 10 minibatches out: their loss was not finite",
    ),
    (
        events.LossNotFinite(process="worker-1", loss="inf", steps=7),
        "worker-1: the loss is inf at step 7; lower the learning rate, or look at the data",
    ),
    (events.LoopLeft(tasks=1), "the script left its loop with 1 task to do"),
    (
        events.TaskFailed(process="worker-1", error="E", failure=1, limit=3, traceback="T"),
        "worker-1: E; failure 1 of 3 of this task, which is tried again",
    ),
    (events.TrainingBegan(number=2), "training 2 of the script begins"),
    (
        events.ScriptRestarted(training=2),
        "no process of training 2 is left: the script starts again",
    ),
    (events.CheckpointWritten(path="/c/7"), "checkpoint /c/7"),
    (
        events.BestCheckpointFound(metric="auc", value=0.81, steps=1000),
        "best checkpoint so far: auc 0.81 at step 1,000",
    ),
    (
        events.CheckpointNotWritten(error="disk full"),
        "checkpoint not written, the next attempt follows: disk full",
    ),
    (events.OutputReady(what="model", path="/m"), "model written to /m"),
    (
        events.WorkerLost(process="worker-0", **SIGNAL_9),
        "worker-0 ended with signal 9; its tasks were returned to the queue",
    ),
    (
        events.WorkerLost(
            process="worker-0",
            way="silent",
            cause="no step for 600 s",
            silent_s=600.0,
            returned=False,
            stacks="File x",
        ),
        (
            "worker-0 declared lost: no step for 600 s; the other workers continue. Its threads:\n"
            "File x"
        ),
    ),
    (
        events.WorkerLost(process="worker-0", way="ended", cause="exit code not known: gone"),
        "worker-0 ended, exit code not known: gone; its tasks were returned to the queue",
    ),
    (
        events.ProcessLeft(
            process="worker-1",
            way="ended",
            cause="exit code 0",
            preempted=True,
            took_s=0.42,
            records_again=1000,
        ),
        (
            "worker-1 ended with exit code 0, as asked; preempted: left in 0.4 s, 1,000 of its "
            "records are trained again"
        ),
    ),
    (
        events.WorkerAskedToLeave(process="worker-1"),
        "worker-1 was asked to leave (SIGTERM)",
    ),
    (
        events.WorkerPreempted(process="worker-1", notice="/f exists"),
        "worker-1 is preempted (/f exists): it returns its tasks",
    ),
    (events.WorkerLeft(process="worker-1"), "worker-1 left"),
    (
        events.SpareEnded(process="spare-3", log="/l", **SIGNAL_9),
        "spare-3 ended with signal 9; its log is /l; no worker is lost",
    ),
    (
        events.StartFailed(process="worker-1", why="no fork"),
        "worker-1 cannot be started: no fork; the next attempt follows",
    ),
    (
        events.WorkersMissing(running=1, minimum=2),
        "workers left: 1 of at least 2; replacements start, and the job continues meanwhile",
    ),
    (
        events.WorkersPending(running=1, minimum=2, pending=3),
        "workers that run: 1, minimum: 2; 3 wait for a place",
    ),
    (events.WorkersEnough(running=2, minimum=2), "workers that run: 2, minimum: 2"),
    (
        events.ProcessesPending(
            role="ps", count=2, process="ps-0", why="no memory", fix="ask for less"
        ),
        "2 parameter servers wait: no memory; ask for less",
    ),
    (events.NonePending(role="worker"), "no workers are waiting now"),
    (events.RingFormed(ring=3, workers=4), "ring 3: 4 workers"),
    (events.RoundFormed(number=2), "round 2 of torchrun's nodes"),
    (events.ServersReady(count=2), "all 2 parameter servers are ready"),
    (
        events.ServerLost(process="ps-1", shard=1, **SIGNAL_9),
        "ps-1 ended with signal 9; another server takes over shard 1, and nothing is lost",
    ),
    (events.RoomMade(process="worker-1"), "worker-1 makes room for a server"),
    (
        events.ModelRestored(
            why="worker-0 ended with signal 9",
            process="worker-0",
            cause="signal 9",
            who="the worker",
            records_again=64,
        ),
        (
            "worker-0 ended with signal 9; the worker restarts from the beginning, there is no "
            "checkpoint, and trains 64 records again"
        ),
    ),
    (
        events.ModelMoved(servers_before=2, servers=3),
        "the model moves from 2 to 3 parameter servers; nothing is rolled back",
    ),
    (
        events.MoveDelayed(error="no disk"),
        "the parameter servers stay for now, the next attempt follows: no disk",
    ),
    (
        events.UpdatesLost(process="ps-0", shard=0, updates=1, damage="x"),
        "ps-0 goes on without 1 update of shard 0, lost for good: x",
    ),
    (
        events.RecordsLacked(process="ps-0", shard=0, records=1000, trained_again=True),
        "ps-0 lacks 1,000 records that it had: its machine lost power; they are trained again",
    ),
    (events.ServerRejects(process="ps-0", problem="full"), "ps-0: full"),
    (events.ServerAccepts(process="ps-0"), "ps-0 accepts pushes again"),
    (
        events.ServerLeaves(process="ps-0", then="copies"),
        "ps-0 was asked to leave (SIGTERM): it waits for copies on others",
    ),
    (
        events.MachineJoined(host="b", slots=1),
        "machine b has joined, with room for 1 worker",
    ),
    (
        events.MachineLeft(host="b", why="silent"),
        "machine b is lost with its processes: silent",
    ),
    (
        events.MachineAvoided(host="b", losses=3, within_s=600.0, last="signal 9"),
        (
            "b lost 3 processes within 10 minutes, the last one: signal 9; other machines are "
            "preferred for as long"
        ),
    ),
    (
        events.ProcessSlow(
            process="ps-2", share=0.31, compared=3, within_s=30.0, likely="it swaps", then="moved"
        ),
        (
            "ps-2 is slow: 31% of the median rate of 3 servers for 30 s; it swaps; the model moves "
            "to other servers"
        ),
    ),
    (events.ProcessRecovered(process="ps-2"), "ps-2 is no longer slow"),
    (
        events.MachineSlow(process="worker-1", share=0.3, compared=4, flops=2e9, copied=3e9),
        (
            "worker-1 has a slow machine: 30% of the median speed of 4 workers in a speed test: "
            "2 GFLOP/s and 3 GB/s for copies in memory"
        ),
    ),
    (events.ChaosBegan(seconds=60.0, seed=7), "chaos begins: 60 s of faults, seed 7"),
    (
        events.FaultInjected(process="ps-1", place="pid 5", fault="paused", pause_s=3.0),
        "chaos: ps-1 (pid 5) paused for 3 s",
    ),
    (events.ChaosSettling(), "chaos: the last fault is over; waiting for progress"),
    (
        events.ChaosEnded(killed="2 workers", verdict="the promise held", held=True),
        "chaos ends: killed 2 workers; the promise held",
    ),
    (
        events.ProcessChanged(process="worker-0", state="exited", exit="signal 9", died=True),
        "worker-0: signal 9",
    ),
    (events.WorkerWaited(process="worker-0", seconds=38.4), "worker-0 made no step for 38 s"),
    (
        Other(severity="warning", message="the state is lost with its pod"),
        "the state is lost with its pod",
    ),
]


@pytest.mark.parametrize(("event", "text"), EXAMPLES, ids=lambda each: getattr(each, "kind", ""))
def test_an_event_is_a_sentence_and_travels_whole(event: Event, text: str) -> None:
    assert event.text == text
    message = event_messages.to_message(event, 7, 5.0)
    assert (message.sequence, message.time, message.level) == (7, 5.0, event.level)
    copy = event_messages.from_line(event_messages.to_line(message))
    assert copy == message
    assert event_messages.from_message(copy) == event


def test_each_class_has_an_example() -> None:
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type)}
    abstract = {Event, events.Loss, events.Judged}
    assert not abstract & set(events.KINDS.values())
    wanted = {kind for kind in kinds if issubclass(kind, Event)} - abstract
    assert {type(event) for event, _ in EXAMPLES} == wanted


def test_levels_are_known_and_kinds_are_unique() -> None:
    assert {event.level for event, _ in EXAMPLES} <= set(events.LEVELS)
    kinds = {type(event): event.kind for event, _ in EXAMPLES}
    assert len(set(kinds.values())) == len(kinds)
    assert kinds[events.WorkerLost] == "worker_lost"


def test_each_process_has_a_name_with_a_number() -> None:
    """The page and the counts of losses split it."""
    for event, _ in EXAMPLES:
        if process := getattr(event, "process", ""):
            assert events.role_of(process) in ("worker", "ps", "spare")
            assert process.rpartition("-")[2].isdecimal()


@pytest.mark.parametrize("fields", [{"process": 7}, {"nonsense": 1}, {"way": "by magic"}, {}])
def test_an_event_of_another_version_keeps_its_text(fields: dict[str, object]) -> None:
    """Known kinds whose fields do not fit, and unknown kinds."""
    for kind in ("worker_lost", "worker_vanished"):
        found = event_of(kind, fields, level="error", text="worker-0 vanished")
        assert found == Other(name=kind, severity="error", message="worker-0 vanished")
    assert event_of("worker_vanished", fields, level="loud", text="x").level == "info"


@pytest.mark.parametrize("fields", ["[1", "7", '{"a": NaN}', "{" * 10_000])
def test_fields_that_are_no_object_are_an_error_of_the_sender(fields: str) -> None:
    with pytest.raises(UsageError, match="an event of the kind 'k': fields"):
        event_messages.from_message(pb.Event(kind="k", fields=fields))


def test_events_are_values() -> None:
    event = events.EpochDone(epoch=1, epochs=3)
    assert event == events.EpochDone(epoch=1, epochs=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.epoch = 2  # type: ignore[misc]


def test_a_number_that_is_not_finite_is_none() -> None:
    """JSON has no NaN, and an event must not stop the master that writes it."""
    for best in (float("inf"), float("nan")):
        event = events.StoppedEarly(epoch=5, metric="auc", patience=2, best=best, best_epoch=3)
        line = event_messages.to_line(event_messages.to_message(event, 1, 5.0))
        copy = event_messages.from_message(event_messages.from_line(line))
        assert copy == dataclasses.replace(event, best=None)
        assert copy.text.endswith("than nan after epoch 3")
