"""Calls that are repeated until there is an answer that will do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from tests.closing_server import ClosingServer
from tests.waiting import HANG_S
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import server, services
from torch_edl.wire.channel import Absence, Stub
from torch_edl.wire.endpoint import free_port

Answers = list[Exception | str]


@pytest.fixture
def stub() -> Iterator[Callable[[Answers], Stub]]:
    """``stub(answers)``: of a master whose status is called these one after the other."""
    opened: list[Callable[[], object]] = []

    def start(answers: Answers) -> Stub:
        def answer(*_: Any) -> pb.GetStatusResponse:
            if isinstance(answers[0], Exception):
                raise answers.pop(0)  # type: ignore[misc]
            return pb.GetStatusResponse(job=str(answers.pop(0)))

        handlers = dict.fromkeys(services.methods(services.CONTROL), answer)
        listening, port = server.serve(
            services.CONTROL, handlers, address="127.0.0.1:0", token="t", threads=1
        )
        made = Stub(services.CONTROL, f"127.0.0.1:{port}", "t")
        opened.extend([made.close, lambda: listening.stop(grace=None).wait()])
        return made

    yield start
    for close in opened:
        close()


def insist(stub: Stub, **options: Any) -> str:
    answer = stub.insist(pb.GetStatusRequest(), timeout_s=HANG_S, **options)
    return str(answer.job)


def test_a_call_is_repeated_while_the_disk_is_full_or_the_answer_will_not_do(
    stub: Callable[[Answers], Stub],
) -> None:
    calls: list[None] = []
    said = insist(
        stub([OSError("no space left"), "not yet", "ready"]),
        until=lambda answer: answer.job == "ready",
        before_call=lambda: calls.append(None),
    )
    assert said == "ready"
    assert len(calls) == 3


def test_the_other_side_may_be_away_for_a_while_if_the_caller_says_so(
    stub: Callable[[Answers], Stub],
) -> None:
    assert insist(stub([TimeoutError("busy"), "here"]), away_s=60.0) == "here"
    with pytest.raises(grpc.RpcError) as caught:
        insist(stub([TimeoutError("busy"), "here"]))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_call_that_is_rejected_is_not_repeated(stub: Callable[[Answers], Stub]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        insist(stub([UsageError("wrong"), "never"]), away_s=60.0)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_what_is_raised_before_a_call_ends_the_wait(stub: Callable[[Answers], Stub]) -> None:
    def stop() -> None:
        raise UsageError("enough")

    with pytest.raises(UsageError, match="enough"):
        insist(stub(["never"]), before_call=stop)


def test_who_must_leave_ends_the_wait_for_a_side_that_is_away(
    stub: Callable[[Answers], Stub],
) -> None:
    def leave() -> None:
        raise UsageError("asked to leave")

    master = stub([TimeoutError("busy"), "never"])
    master.before_retry = leave
    with pytest.raises(UsageError, match="asked to leave"):
        insist(master, away_s=60.0)


@pytest.fixture
def absent() -> Iterator[tuple[Stub, str]]:
    """A stub that waits for a process of the job, and the address where it does not listen."""
    address = f"127.0.0.1:{free_port()}"
    stub = Stub(services.CONTROL, address, "t")
    yield stub, address
    stub.close()


def test_who_must_leave_does_not_wait_for_the_deadline_of_a_call_that_finds_no_process(
    absent: tuple[Stub, str],
) -> None:
    stub, _ = absent

    def leave() -> None:
        raise UsageError("asked to leave")

    stub.before_retry = leave
    with pytest.raises(UsageError, match="asked to leave"):
        stub.call(pb.GetStatusRequest(), timeout_s=HANG_S, wait=True)


def test_a_call_that_waits_is_answered_by_a_process_that_comes_later(
    absent: tuple[Stub, str],
) -> None:
    stub, address = absent
    waits = threading.Event()
    stub.before_retry = waits.set
    call = stub.start(pb.GetStatusRequest(), timeout_s=HANG_S, wait=True)
    assert waits.wait(HANG_S)
    handlers = dict.fromkeys(
        services.methods(services.CONTROL), lambda *_: pb.GetStatusResponse(job="here")
    )
    listening, _ = server.serve(services.CONTROL, handlers, address=address, token="t", threads=1)
    assert call.result(HANG_S).job == "here"
    listening.stop(grace=None).wait()


def test_a_call_that_waits_ends_when_the_connection_is_closed(absent: tuple[Stub, str]) -> None:
    stub, _ = absent
    waits = threading.Event()
    stub.before_retry = waits.set
    call = stub.start(pb.GetStatusRequest(), timeout_s=HANG_S, wait=True)
    assert waits.wait(HANG_S)
    stub.close()
    with pytest.raises(grpc.RpcError) as caught:
        call.result(HANG_S)
    assert caught.value.code() is grpc.StatusCode.CANCELLED


def test_an_answer_that_is_too_large_is_an_error_and_not_awaited(
    stub: Callable[[Answers], Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(grpc.RpcError) as caught:
        insist(stub(["x" * 2000]))
    assert caught.value.code() is grpc.StatusCode.INTERNAL


def test_no_proxy_stands_between_the_processes_of_a_job(
    stub: Callable[[Answers], Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClosingServer() as proxy:
        for name in ("grpc_proxy", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, f"http://{proxy.address}")
        for name in ("no_grpc_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        master = stub(["ours"])
        assert master.call(pb.GetStatusRequest(), timeout_s=HANG_S).job == "ours"
    assert proxy.connections == 0


def test_only_the_time_of_attempts_counts() -> None:
    now = 0.0
    absence = Absence(6.0, clock=lambda: now)
    now = 1.0
    assert absence.failed() == 1.0
    now = 7.0
    assert absence.failed() == 7.0
    now = 900.0  # the process was paused, and its call has failed meanwhile
    assert absence.failed() == 13.0
    absence.answered()
    assert absence.seconds == 0.0
    now = 1800.0
    assert absence.failed() == 6.0
