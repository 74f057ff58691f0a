"""Processes in pods: here a pod is a real node on this machine, with real processes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.waiting import HANG_S, is_running
from torch_edl.config import Launch
from torch_edl.config.environment import ENV_MASTER, ENV_TOKEN
from torch_edl.node.ranks import Ranks
from torch_edl.plugins.kubernetes.master.pod_nodes import PodNodes
from torch_edl.processes.launcher import (
    Command,
    Known,
    ProcessEvent,
    ProcessExit,
    ProcessNotStarted,
    ProcessRuns,
    ProcessSpec,
)
from torch_edl.processes.local import LocalLauncher
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.server import serve

PROGRAMS = str(Path(__file__).parent / "programs")
TOKEN = "0123456789abcdef" * 2


class Machine(LocalLauncher):
    """Says that its pods run, as a cluster does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pids: dict[str, int] = {}
        self._news: list[ProcessEvent] = []

    def start(self, spec: ProcessSpec) -> int:
        pid = self.pids[spec.name] = super().start(spec)
        self._news.append(ProcessRuns(role=spec.role, id=spec.id, node="node-a"))
        return pid

    def adopt(self, known: Sequence[Known]) -> None:
        """Find the pods of the master before, which are those of this object."""
        for each in known:
            if (each.role, each.id) in self._running:
                self._news.append(ProcessRuns(role=each.role, id=each.id, node="node-a"))
            else:
                self._news.append(ProcessNotStarted(role=each.role, id=each.id))

    def poll(self) -> list[ProcessEvent]:  # type: ignore[override]
        news, self._news = self._news, []
        return [*news, *super().poll()]


class Job:
    """A master with a launcher of pods, with room for two workers each."""

    def __init__(self, folder: Path) -> None:
        self.machine = Machine(folder)
        self.launcher = self.next_launcher()
        self.reports: list[pb.NodeReportRequest] = []
        self.exits: list[ProcessExit] = []
        handlers = {"NodeReport": self._report}
        self._server, port = serve(
            services.NODES,
            handlers,
            address="127.0.0.1:0",
            token=TOKEN,
            threads=4,
            waiting=handlers,
            waiting_threads=8,
        )
        self.env = {ENV_MASTER: f"127.0.0.1:{port}", ENV_TOKEN: TOKEN, "PYTHONPATH": PROGRAMS}

    def next_launcher(self, **more: Any) -> PodNodes:
        made = PodNodes(self.machine, slots={"worker": 2}, job="j", incarnation="new", **more)
        self.launcher = made
        return made

    def _report(
        self, request: pb.NodeReportRequest, context: grpc.ServicerContext
    ) -> pb.NodeReportResponse:
        self.reports.append(request)
        return self.launcher.nodes.report(request, context.is_active)

    def report(self, request: pb.NodeReportRequest) -> pb.NodeReportResponse:
        return self.launcher.nodes.report(request, lambda: True)

    def start(
        self,
        id: int,
        pod: int,
        *,
        role: str = "worker",
        token: str = TOKEN,
        module: str = "sleeper",
    ) -> None:
        spec = ProcessSpec(
            role=role,
            id=id,
            module=module,
            env={**self.env, ENV_TOKEN: token},
            pod=f"worker-{pod}",
            slot=id,
            args=["--id", str(id)],
        )
        self.launcher.start(spec)

    def log(self, pod: int = 0) -> str:
        return Path(self.launcher.log_path("worker", pod)).read_text()

    def begun(self, *ids: int, pod: int = 0) -> None:
        self.until(lambda: all(f": begun {id}\n" in self.log(pod) for id in ids))

    def until(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + HANG_S
        while not what():
            events = self.launcher.poll()
            self.exits += [each for each in events if isinstance(each, ProcessExit)]
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.01)

    def next_exits(self, count: int = 1) -> list[ProcessExit]:
        self.until(lambda: len(self.exits) >= count)
        found, self.exits = self.exits, []
        assert len(found) == count, found
        return found

    def ended(self, pod: int) -> bool:
        """Whether a pod has ended by itself, which keeps its log."""
        self.launcher.poll()
        path = Path(f"/proc/{self.machine.pids[f'worker-{pod}']}")
        return not path.exists()

    def close(self) -> None:
        self.launcher.stop_all(grace_s=0)
        self._server.stop(0).wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def pid_of(id: int) -> int:
    """Return the pid of a worker of this test."""
    words = f"sleeper\0--id\0{id}\0".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().endswith(words):
                return int(path.parent.name)
        except OSError:
            continue
    raise AssertionError(f"worker-{id} does not run")


def test_one_worker_of_a_pod_is_lost_and_replaced_there(job: Job) -> None:
    job.start(0, 0)
    job.start(1, 0)
    job.begun(0, 1)
    assert list(job.machine.pids) == ["worker-0"]
    os.kill(pid_of(1), signal.SIGKILL)
    [end] = job.next_exits()
    assert (end.role, end.id, end.signal) == ("worker", 1, 9)
    assert (end.node, end.blames_node, end.pod_lives) == ("node-a", True, True)
    job.start(2, 0)
    job.begun(2)
    assert list(job.machine.pids) == ["worker-0"]
    # One of two is stopped, then the other one, and with it the pod.
    job.launcher.stop("worker", 0, grace_s=30.0)
    [end] = job.next_exits()
    assert (end.id, end.was_terminated) == (0, True)
    job.launcher.stop("worker", 2, grace_s=30.0)
    [end] = job.next_exits()
    assert (end.id, end.was_terminated) == (2, True)
    # A worker that comes too late is told at once.
    job.start(3, 0)
    [end] = job.next_exits()
    assert (end.id, end.was_taken) == (3, True)


def test_a_pod_is_lost_with_all_its_workers_and_counts_once(job: Job) -> None:
    job.start(0, 0)
    job.start(1, 0)
    job.begun(0, 1)
    os.kill(job.machine.pids["worker-0"], signal.SIGKILL)
    first, second = job.next_exits(2)
    assert (first.id, first.was_killed) == (0, True)
    assert (second.id, second.was_taken, second.blames_node) == (1, True, False)
    assert second.why == "its pod ended with signal 9"
    # The number of a pod is never used again.
    assert job.report(pb.NodeReportRequest(node="worker-0", incarnation="new")).leave


def test_sigterm_of_a_pod_reaches_all_its_workers(job: Job) -> None:
    job.start(0, 0)
    job.start(1, 0)
    job.begun(0, 1)
    os.kill(job.machine.pids["worker-0"], signal.SIGTERM)
    ends = job.next_exits(2)
    assert [(end.id, end.was_terminated) for end in ends] == [(0, True), (1, True)]


def test_a_worker_that_hangs_or_is_not_known_is_ended_by_force(job: Job) -> None:
    job.start(0, 0)
    job.start(1, 0)
    job.begun(0, 1)
    os.kill(pid_of(1), signal.SIGSTOP)
    job.launcher.stop("worker", 1, grace_s=0.0)
    [end] = job.next_exits()
    assert (end.id, end.signal) == (1, 9)
    request = pb.NodeReportRequest(node="worker-0", incarnation="new")
    for id in (0, 9):
        request.running.add(role="worker", id=id, pid=1)
    answer = job.report(request)
    assert [each.id for each in answer.run] == [0]
    assert [(each.id, each.grace_s) for each in answer.stop] == [(9, 0.0)]


def test_a_pod_of_an_earlier_incarnation_has_to_leave(job: Job) -> None:
    """A master that lost the state numbers its workers from 0 again."""
    job.start(0, 0)
    job.begun(0)
    late = pb.NodeReportRequest(node="worker-0", incarnation="old")
    late.running.add(role="worker", id=7, pid=1)
    late.ended.add(role="worker", id=0, code=1)
    assert job.report(late) == pb.NodeReportResponse(leave=True)
    assert not [each for each in job.launcher.poll() if isinstance(each, ProcessExit)]


def test_an_end_is_told_until_it_is_heard_and_counts_once(job: Job) -> None:
    job.start(0, 0)
    job.start(1, 0)
    job.begun(0, 1)
    os.kill(pid_of(1), signal.SIGKILL)
    job.next_exits()
    ended = next(r for r in job.reports if r.ended)
    assert [(e.id, e.code, e.why) for e in ended.ended] == [(1, -9, "begun 1")]
    again = pb.NodeReportRequest()
    again.CopyFrom(ended)
    again.waits = False
    assert [each.id for each in job.report(again).run] == [0, 1], "the end is not stored"
    job.launcher.nodes.stored()
    assert [each.id for each in job.report(again).run] == [0]
    assert job.launcher.poll() == []


def test_one_that_never_ran_is_dropped(job: Job) -> None:
    job.start(0, 0)
    job.start(1, 0)
    job.launcher.stop("worker", 1, grace_s=2.0)  # before the pod has asked
    [end] = job.next_exits()
    assert (end.id, end.was_terminated) == (1, True)
    job.begun(0)


def test_an_idle_pod_takes_its_process_or_another_one(job: Job) -> None:
    for id in (0, 1, 2):
        job.start(id, id, module="")
    job.until(lambda: len({report.node for report in job.reports}) == 3)
    assert not job.exits
    job.start(0, 0)
    job.begun(0)
    job.start(7, 1, role="ps")  # first: the pod must not end
    job.launcher.stop("worker", 1, grace_s=0.0)
    [end] = job.next_exits()
    assert (f"{end.role}-{end.id}", end.was_terminated) == ("worker-1", True)
    job.begun(7, pod=1)
    # The next master knows which pods are idle.
    job.next_launcher()
    pods = {("worker", 0): "worker-0", ("ps", 7): "worker-1", ("worker", 2): "worker-2"}
    job.launcher.adopt(
        [
            Known(role=role, id=id, pod=pod, ran=True, idle=(role, id) == ("worker", 2))
            for (role, id), pod in pods.items()
        ]
    )
    os.kill(job.machine.pids["worker-2"], signal.SIGKILL)
    [end] = job.next_exits()
    assert (f"{end.role}-{end.id}", end.signal) == ("worker-2", 9)
    job.start(2, 2)  # too late: no other pod gets this name
    [end] = job.next_exits()
    assert (f"{end.role}-{end.id}", end.why) == ("worker-2", "its pod has ended")


def test_a_crash_leaves_the_pod_to_a_successor_of_any_role(job: Job) -> None:
    job.start(0, 0)
    job.begun(0)
    os.kill(pid_of(0), signal.SIGKILL)
    [end] = job.next_exits()
    assert (end.signal, end.pod_lives) == (9, True)
    job.start(1, 0)
    job.begun(1)
    assert list(job.machine.pids) == ["worker-0"]
    os.kill(pid_of(1), signal.SIGKILL)
    [end] = job.next_exits()
    job.start(7, 0, role="ps")
    job.begun(7)
    assert job.launcher.log_path("ps", 7) == job.launcher.log_path("worker", 0)
    os.kill(pid_of(7), signal.SIGKILL)
    [end] = job.next_exits()
    assert (end.role, end.id, end.pod_lives) == ("ps", 7, True)
    # Nobody follows: the pod ends by itself, and its log stays.
    job.launcher.stop("ps", 7, grace_s=0.0)
    job.until(lambda: job.ended(0))
    assert not job.exits
    job.start(8, 0)
    [end] = job.next_exits()
    assert (end.id, end.was_taken, end.why) == (8, True, "its pod has ended")


def test_a_pod_whose_process_was_stopped_ends_by_itself(job: Job) -> None:
    job.start(0, 0)
    job.begun(0)
    job.launcher.stop("worker", 0, grace_s=30.0)
    [end] = job.next_exits()
    assert (end.code, end.pod_lives) == (143, False)
    job.until(lambda: job.ended(0))


def test_a_process_waits_until_a_slot_of_its_pod_is_free(job: Job) -> None:
    job.start(0, 0)
    job.start(1, 0)
    job.begun(0, 1)
    job.start(5, 0, role="ps")
    job.launcher.stop("worker", 1, grace_s=0.0)
    [end] = job.next_exits()
    assert (end.role, end.id) == ("worker", 1)
    job.begun(5)
    # One that still waits is stopped at once, and ends with its pod.
    job.start(6, 0, role="ps")
    job.start(7, 0, role="ps")
    job.launcher.stop("ps", 6, grace_s=2.0)
    [end] = job.next_exits()
    assert (end.role, end.id, end.was_terminated) == ("ps", 6, True)
    os.kill(job.machine.pids["worker-0"], signal.SIGKILL)
    ends = {(end.role, end.id): end.was_taken for end in job.next_exits(3)}
    assert ends == {("worker", 0): False, ("ps", 5): True, ("ps", 7): True}


def test_a_pod_whose_node_never_reports_is_given_up(job: Job) -> None:
    job.next_launcher(silent_s=0.5)
    job.env[ENV_MASTER] = "127.0.0.1:9"  # nothing listens there
    job.start(0, 0)
    [end] = job.next_exits()
    assert end.why.startswith("its pod runs but has not reached the master for 0.5 s; see /")
    assert (end.own_fault, end.blames_node) == (True, True)
    job.until(lambda: job.ended(0))


def test_a_pod_whose_node_hangs_is_given_up(job: Job) -> None:
    job.start(0, 0)
    job.begun(0)
    os.kill(job.machine.pids["worker-0"], signal.SIGSTOP)
    job.launcher.silent_s = 0.5
    [end] = job.next_exits()
    assert (end.why, end.was_taken) == ("its node has not reported for 0.5 s", True)
    job.until(lambda: job.ended(0))


def test_a_node_with_a_wrong_token_fails_and_says_so(job: Job) -> None:
    job.start(0, 0, token="another")
    [end] = job.next_exits()
    assert (end.id, end.code) == (0, 1)
    assert "the master rejects this node" in job.log()


def test_the_next_master_finds_what_runs_and_what_was_never_ordered(job: Job) -> None:
    job.start(0, 0)
    job.begun(0)
    pid = pid_of(0)
    job.next_launcher()
    pods = {0: "worker-0", 1: "worker-0", 2: "worker-2"}
    known = [Known(role="worker", id=id, pod=pod, ran=id == 0) for id, pod in pods.items()]
    job.launcher.adopt(known)
    events: list[ProcessEvent] = []
    job.until(lambda: events.extend(job.launcher.poll()) or len(events) >= 5)
    never = {each.id for each in events if isinstance(each, ProcessNotStarted)}
    runs = [(e.id, e.pid) for e in events if isinstance(e, ProcessRuns) and e.pid]
    assert (never, len(runs), runs[0][0]) == ({1, 2}, 1, 0)
    assert pid_of(0) == pid
    job.launcher.stop("worker", 0, grace_s=30.0)
    [end] = job.next_exits()
    assert (end.id, end.was_terminated) == (0, True)


# ---- scripts ----


class ScriptJob(Job):
    """A script whose pods run ``torch-edl run``, with two workers each."""

    def __init__(self, folder: Path, script: Path) -> None:
        self.told = folder / "told"
        self.told.mkdir()
        self.ranks = Ranks(Launch(min_nodes=2, max_nodes=9, per_node=2))
        self._script = script
        super().__init__(folder)
        self.env |= {"WORKER_FOLDER": str(self.told), "TORCH_EDL_HOME": str(folder / "home")}
        self.launcher = self.next_launcher()

    def next_launcher(self, **more: Any) -> PodNodes:
        words = ["run", "--nnodes", "2:9", "--nproc-per-node", "2", "--job-name", "j"]
        if hasattr(self, "env"):
            words += ["--rdzv-endpoint", self.env[ENV_MASTER]]
        more = {"ranks": self.ranks, "script": [*words, "--", str(self._script)]}
        return super().next_launcher(**more)

    def order(self, id: int, slot: int, pod: int) -> None:
        """Ask for a worker of the script."""
        spec = ProcessSpec(
            role="worker", id=id, slot=slot, pod=f"worker-{pod}", command=Command(), env=self.env
        )
        self.launcher.start(spec)

    def workers(self) -> dict[int, dict[str, str]]:
        """Return the environments of the workers that run, by rank."""
        self.launcher.poll()
        told = [json.loads(file.read_text()) for file in self.told.glob("*-*.json")]
        pids = [int(file.stem.split("-")[1]) for file in self.told.glob("*-*.json")]
        running = [env for pid, env in zip(pids, told, strict=True) if is_running(pid)]
        return {int(env["RANK"]): env for env in running}


@pytest.mark.slow  # each pod imports torch
def test_the_workers_of_a_script_run_in_pods_as_on_machines(tmp_path: Path) -> None:
    worker = Path(__file__).parents[2] / "launch" / "script" / "programs" / "worker.py"
    job = ScriptJob(tmp_path, worker)
    try:
        for slot in (0, 1):
            job.order(slot, slot, 0)
        job.until(lambda: any(report.node == "worker-0" for report in job.reports))
        assert job.workers() == {}, "the second pod of at least two is not there"
        for slot in (2, 3):
            job.order(slot, slot, 2)
        job.until(lambda: len(job.workers()) == 4)
        env = job.workers()[3]
        assert (env["LOCAL_RANK"], env["GROUP_RANK"], env["WORLD_SIZE"]) == ("1", "1", "4")
        assert env["TORCH_EDL_PROCESS"] == "worker-3"
        assert "TORCH_EDL_NODE_OF_POD" not in env
        # A worker that is killed is replaced in its pod, a pod that is killed by another one.
        os.kill(next(r.pid for r in job.reports[-1].running if r.id in (1, 3)), signal.SIGKILL)
        [end] = job.next_exits()
        assert (end.signal, end.pod_lives) == (9, True)
        job.order(4, end.id, 0 if end.id == 1 else 2)
        job.until(lambda: len(job.workers()) == 4)
        assert job.workers()[end.id]["TORCH_EDL_PROCESS"] == "worker-4"
        assert job.workers()[end.id]["TORCHELASTIC_RESTART_COUNT"] == "1"
        os.kill(job.machine.pids["worker-2"], signal.SIGKILL)
        ends = job.next_exits(2)
        assert not any(each.completed for each in ends)
        for id, slot in ((5, 2), (6, 3)):
            job.order(id, slot, 5)
        job.until(lambda: len(job.workers()) == 4)
        # Each line of the log of a pod names its process.
        job.until(lambda: "worker-5: worker 2 begins\n" in job.log(5))
        (job.told / "end").write_text("0")
        assert all(each.completed for each in job.next_exits(4))
    finally:
        job.close()
