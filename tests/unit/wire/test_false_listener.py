"""A process of another user at the port of a master: it learns no secret, and is not believed."""

from __future__ import annotations

import contextlib

import grpc
import pytest

from tests.other_user import false_listener, needs_root
from tests.waiting import HANG_S
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub
from torch_edl.wire.endpoint import free_port

TOKEN = "0123456789abcdef" * 2

pytestmark = needs_root


def test_a_false_listener_receives_no_token() -> None:
    port = free_port()
    stub = Stub(services.CONTROL, f"127.0.0.1:{port}", TOKEN)
    with (
        contextlib.closing(stub),
        false_listener(port) as received,
        pytest.raises(grpc.RpcError) as caught,
    ):
        stub.call(pb.GetStatusRequest(), timeout_s=HANG_S)
    assert received
    assert TOKEN.encode() not in b"".join(received)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "does not speak TLS" in str(caught.value.details())
