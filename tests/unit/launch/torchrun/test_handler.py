"""The rendezvous of torchrun, over a real master: rounds, their stores, and who is out of date."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path

import psutil
import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from tests.place import processes_of
from tests.waiting import HANG_S, wait_for
from torch_edl.launch.jobs import master_host, master_process
from torch_edl.launch.jobs.folder import all_jobs
from torch_edl.launch.torchrun import handler_creator
from torch_edl.launch.torchrun.handler import MasterRendezvousHandler
from torch_edl.launch.torchrun.options import job_name, unquoted
from torch_edl.wire.endpoint import free_port

ROOT = Path(__file__).parents[3]

# An agent of its own process: says its rank in each round, asks again when its round is over.
_AGENT = """
import sys, time
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch_edl.launch.torchrun import handler_creator
handler = handler_creator()(RendezvousParameters(
    "edl", sys.argv[1], "rounds", 1, 3, "127.0.0.1", last_call_timeout=1))
while True:
    info = handler.next_rendezvous()
    print(info.rank, info.world_size, flush=True)
    while not handler.num_nodes_waiting():
        time.sleep(0.05)
"""

Make = Callable[..., MasterRendezvousHandler]


def meet(*handlers: MasterRendezvousHandler) -> list[RendezvousInfo]:
    """All ask at the same time; what each was told, in the order of ranks."""
    with ThreadPoolExecutor(len(handlers)) as pool:
        told = [pool.submit(handler.next_rendezvous) for handler in handlers]
        return sorted((t.result(timeout=HANG_S) for t in told), key=lambda info: info.rank)


def free_endpoint() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A free place; the master that is started there is gone after the test."""
    monkeypatch.setenv("TORCH_EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("TORCH_EDL_TOKEN", "TORCH_EDL_MASTER", "TORCH_EDL_NODE"):
        monkeypatch.setenv(name, "")  # so that what the handler sets is undone
        monkeypatch.delenv(name)
    yield free_endpoint()
    for process in processes_of(tmp_path / "home"):
        process.kill()


@pytest.fixture
def make(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[MasterRendezvousHandler] = []

    def handler(
        least: int = 1,
        most: int = 3,
        *,
        last_call: float = 1,
        at: str = endpoint,
        run_id: str = "rounds",
        local_addr: str = "127.0.0.1",
        **config: object,
    ) -> MasterRendezvousHandler:
        # Each agent starts without the token in its environment.
        monkeypatch.delenv("TORCH_EDL_TOKEN", raising=False)
        parameters = RendezvousParameters(
            "edl", at, run_id, least, most, local_addr, last_call_timeout=last_call, **config
        )  # type: ignore[arg-type]
        made.append(handler_creator()(parameters))
        return made[-1]

    yield handler
    for each in reversed(made):  # the first one hosts the master, which leaves with the last
        each.shutdown()


def test_torchrun_finds_it() -> None:
    (found,) = entry_points(group="torchrun.handlers", name="edl")
    assert found.load() is handler_creator


def test_each_round_has_a_store_of_its_own(make: Make, endpoint: str) -> None:
    one, two = make(2), make(2)
    assert os.environ["TORCH_EDL_MASTER"] == endpoint
    first = meet(one, two)
    assert [(i.rank, i.world_size) for i in first] == [(0, 2), (1, 2)]
    first[0].store.set("key", "first round")
    assert first[1].store.get("key") == b"first round"
    bootstrap = first[1].bootstrap_store_info
    assert bootstrap is not None
    assert bootstrap.master_addr == "127.0.0.1"
    assert (one.get_backend(), one.get_run_id(), one.is_closed()) == ("edl", "rounds", False)
    assert one.num_nodes_waiting() == 0

    three = make(2)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(three.next_rendezvous)
        wait_for(one.num_nodes_waiting)
        wait_for(two.num_nodes_waiting)
        second = [*meet(one, two), joining.result(timeout=HANG_S)]
    assert sorted((i.rank, i.world_size) for i in second) == [(0, 3), (1, 3), (2, 3)]
    ports = {i.bootstrap_store_info.master_port for i in second if i.bootstrap_store_info}
    assert len(ports) == 1
    assert ports != {bootstrap.master_port}
    assert not second[0].store.check(["key"])


def test_a_node_that_leaves_ends_the_round(make: Make) -> None:
    one, two = make(1), make(1)
    meet(one, two)
    two._leave()
    wait_for(one.num_nodes_waiting)
    (alone,) = meet(one)
    assert (alone.rank, alone.world_size) == (0, 1)


def test_a_closed_job_lets_nobody_in(make: Make) -> None:
    one, two = make(1), make(1)
    meet(one, two)
    one.shutdown()
    wait_for(two.is_closed)
    assert two.num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError):
        two.next_rendezvous()


def test_a_job_makes_room_for_the_next_one(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_host, "_LEAVES_S", 10 * HANG_S)  # nobody waits so long
    for run_id in ("rounds", "rounds", "another"):
        one = make(1, 1, run_id=run_id)
        meet(one)
        one.shutdown()
    # Ended by a signal: nobody closed the job.
    one = make(1, 1, run_id="rounds")
    meet(one)
    one._leave()
    meet(make(1, 1, run_id="another"))


def test_jobs_of_one_id_at_two_ports_are_two(make: Make) -> None:
    for run_id in ("none", "rounds"):
        first, second = (make(1, 1, run_id=run_id, at=free_endpoint()) for _ in range(2))
        ports = {meet(h)[0].bootstrap_store_info.master_port for h in (first, second)}
        assert len(ports) == 2
        assert make(1, 1, run_id=run_id, at=second._endpoint)._stub.address == second._endpoint
    names = {job.name for job in all_jobs() if job.is_alive()}
    assert {re.sub(r"\d+$", "N", name) for name in names} == {"torchrun-N", "rounds", "rounds-N"}


def test_the_job_of_one_machine_listens_on_loopback(make: Make, endpoint: str) -> None:
    """Whatever address of the machine is named; agents of several machines need that one."""

    def listening(process: psutil.Process) -> set[str]:
        found = process.net_connections(kind="inet")
        return {c.laddr.ip.removeprefix("::ffff:") for c in found if c.status == "LISTEN"}

    port = endpoint.rpartition(":")[2]
    handler = make(1, 1, at=f"127.0.0.2:{port}", local_addr="127.0.0.2")
    (info,) = meet(handler)
    assert info.bootstrap_store_info is not None
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    assert handler._master.hosted is not None
    assert listening(psutil.Process(handler._master.hosted.pid)) == {"127.0.0.1"}
    assert listening(psutil.Process()) == {"127.0.0.1"}
    handler.shutdown()
    several = make(1, 2, at=f"127.0.0.2:{port}", local_addr="127.0.0.2", run_id="several")
    meet(several)
    assert several._master.hosted is not None
    assert listening(psutil.Process(several._master.hosted.pid)) == {"127.0.0.2"}
    assert "127.0.0.2" in listening(psutil.Process())


def test_a_master_that_answers_between_its_deaths_is_always_started_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_process, "_MAX_STARTS_IN_A_ROW", 2)
    one = make(1)
    meet(one)
    hosted = one._master.hosted
    assert hosted is not None
    for _ in range(2):
        seen = one._seen
        wait_for(lambda seen=seen: one._seen is not seen)
        killed = hosted.pid
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda killed=killed: not one.num_nodes_waiting() and hosted.pid != killed)


def test_a_master_that_answers_those_who_wait_for_a_round_is_always_started_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_process, "_MAX_STARTS_IN_A_ROW", 2)
    one, two = make(2), make(2)
    hosted = one._master.hosted
    assert hosted is not None

    def kill_twice_and_join() -> RendezvousInfo:
        for _ in range(2):
            wait_for(lambda: not hosted._starts_in_a_row)
            killed = hosted.pid
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda killed=killed: hosted.pid != killed)
        return two.next_rendezvous()

    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(kill_twice_and_join)
        assert one.next_rendezvous().world_size == 2  # in the main thread, which starts masters
        joined.result(timeout=HANG_S)


def test_another_job_at_the_port_is_named(make: Make) -> None:
    make(1)
    with pytest.raises(RendezvousConnectionError, match="job rounds listens there, not job a"):
        make(1, run_id="another")


def test_who_comes_while_a_job_ends_gets_into_the_next_one(make: Make) -> None:
    one, two = make(1), make(1)
    meet(one, two)
    late = make(1)
    one.shutdown()
    timer = threading.Timer(1.0, two._leave)
    timer.start()
    # late asks a job that is over; then it waits for its master to leave, and starts one.
    (info,) = [late.next_rendezvous()]
    assert (info.rank, info.world_size) == (0, 1)
    assert late._master.hosted is not None
    timer.join()


def test_who_waited_for_a_place_does_not_begin_a_job_anew_when_its_job_is_over(make: Make) -> None:
    one, two = make(1, 1, run_id="full"), make(1, 1, run_id="full")
    meet(one)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(two.next_rendezvous)
        wait_for(lambda: two._belongs)
        one.shutdown()
        with pytest.raises(RendezvousClosedError):
            waiting.result(timeout=HANG_S)
    assert two._master.hosted is None


def test_the_job_that_an_agent_began_is_over_for_it_when_another_closes_it(make: Make) -> None:
    one, two = make(2), make(2)
    two.shutdown()
    with ThreadPoolExecutor(1) as pool, pytest.raises(RendezvousClosedError):
        pool.submit(one.next_rendezvous).result(timeout=HANG_S)


def test_an_agent_that_raises_says_why_the_job_failed(make: Make) -> None:
    one = make(1)
    meet(one)
    failure = ProcessFailure(local_rank=1, pid=1, exitcode=3, error_file="none")

    def launch() -> None:
        try:
            raise ChildFailedError("train.py", {1: failure})
        finally:
            one.shutdown()  # as torch's launcher

    with pytest.raises(ChildFailedError):
        launch()
    (job,) = all_jobs()
    assert "train.py: rank 1 ended with exit code 3" in str(job.last_status())


def test_too_few_nodes(make: Make) -> None:
    with pytest.raises(RendezvousTimeoutError, match="no round of 2 nodes within 2 s"):
        make(2, join_timeout=2).next_rendezvous()


def test_a_wrong_token_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    make(1)
    monkeypatch.setenv("TORCH_EDL_TOKEN", "0123456789abcdef" * 2)
    parameters = RendezvousParameters(
        "edl", os.environ["TORCH_EDL_MASTER"], "rounds", 1, 3, "127.0.0.1"
    )
    stranger = handler_creator()(parameters)
    with pytest.raises(RendezvousConnectionError, match="not of TORCH_EDL_TOKEN"):
        stranger.next_rendezvous()


@pytest.mark.slow
def test_a_stale_agent_is_out_until_it_asks_again(make: Make, endpoint: str) -> None:
    one = make(1)
    with subprocess.Popen(
        [sys.executable, "-c", _AGENT, endpoint], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            assert other.stdout is not None
            meet(one)
            wait_for(one.num_nodes_waiting)  # the other one has come
            assert meet(one)[0].world_size == 2
            while other.stdout.readline().split()[1] != "2":
                pass
            other.send_signal(signal.SIGSTOP)
            wait_for(one.num_nodes_waiting)
            (alone,) = meet(one)
            assert alone.world_size == 1
            # It awakes in a round that is over, finds out and asks in.
            other.send_signal(signal.SIGCONT)
            wait_for(one.num_nodes_waiting)
            assert meet(one)[0].world_size == 2
            assert other.stdout.readline().split()[1] == "2"
        finally:
            other.kill()


@pytest.mark.parametrize(("run_id", "name"), [("a/b c", "a-b-c"), ("..", "job"), ("x.1", "x.1")])
def test_a_run_id_names_a_job(run_id: str, name: str) -> None:
    assert job_name(run_id) == name


def test_quotes_around_options_are_not_meant() -> None:
    configs = unquoted({"'join_timeout": "60", "last_call_timeout": "5'", "rank": 0})
    assert configs == {"join_timeout": "60", "last_call_timeout": "5", "rank": 0}
