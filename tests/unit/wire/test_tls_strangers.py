"""What strangers may send to a port off loopback: it ends their connections, and no other."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.wire.watched import Server, ends, running
from tests.waiting import HANG_S, wait_for
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import Stub
from torch_edl.wire.security import certificates

TOKEN = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2
HANDSHAKE_S = 2.0
GROWTH_MIB = 48

# The first flight of a client, as far as a stranger likes to send it.
_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_CONTEXT.check_hostname, _CONTEXT.verify_mode = False, ssl.CERT_NONE
_OUT = ssl.MemoryBIO()
with contextlib.suppress(ssl.SSLWantReadError):
    _CONTEXT.wrap_bio(ssl.MemoryBIO(), _OUT).do_handshake()
HELLO = _OUT.read()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

PROGRAM = f"""
import resource, sys
from torch_edl.wire import master_pb2 as pb, server, services
if sys.argv[1]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
server._HANDSHAKE_MS = {HANDSHAKE_S * 1000:.0f}
handlers = dict.fromkeys(services.methods(services.CONTROL), lambda r, c: None)
handlers["GetStatus"] = lambda r, c: pb.GetStatusResponse(job="j")
where = "127.0.0.1:0"
listening, port = server.serve(
    services.CONTROL, handlers, address=where, token="{TOKEN}", threads=2)
print(port, flush=True)
sys.stdin.read()
listening.stop(1).wait()
"""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with running(PROGRAM, str(getattr(request, "param", ""))) as made:
        yield made


def serves(server: Server) -> bool:
    """Whether one who has the token is answered, over a connection of its own."""
    with contextlib.closing(Stub(services.CONTROL, server.address, TOKEN)) as stub:
        return str(stub.call(pb.GetStatusRequest(), timeout_s=HANG_S, wait=True).job) == "j"


@pytest.fixture
def member(tmp_path: Path) -> Callable[[str], ssl.SSLContext]:
    """``member(token)``: what a process with that token presents and accepts."""

    def made(token: str) -> ssl.SSLContext:
        identity = certificates.of_token(token)
        for name, content in (("crt", identity.certificate), ("key", identity.key)):
            (tmp_path / name).write_bytes(content)
        context = ssl.create_default_context(cadata=identity.ca.decode())
        context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
        context.set_alpn_protocols(["h2"])
        return context

    return made


def test_bytes_of_chance_and_broken_handshakes(server: Server) -> None:
    chance = random.Random(7)
    assert serves(server)
    before, files = server.mib, server.files
    for turn in range(200):
        cut = HELLO[: chance.randrange(len(HELLO))]
        damaged = bytearray(HELLO)
        for _ in range(chance.randrange(1, 8)):
            damaged[chance.randrange(5, len(damaged))] = chance.randrange(256)
        sent = [chance.randbytes(chance.randrange(1, 2000)), cut, bytes(damaged), PREFACE][turn % 4]
        with server.connect() as stranger:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            assert ends(stranger)
    assert serves(server)
    assert server.mib - before < GROWTH_MIB
    wait_for(lambda: server.files <= files)


def test_handshakes_that_are_never_finished_end_and_block_nobody(server: Server) -> None:
    assert serves(server)
    files = server.files
    first_bytes = (b"", HELLO[:1], HELLO[: len(HELLO) // 2], HELLO)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(server.connect()) for _ in range(200)]
        for number, stranger in enumerate(strangers):
            stranger.sendall(first_bytes[number % len(first_bytes)])
        for _ in range(5):
            assert serves(server)
        assert all(map(ends, strangers))
        assert time.monotonic() - began > HANDSHAKE_S / 2
    assert serves(server)
    wait_for(lambda: server.files <= files)


@pytest.mark.parametrize("server", [300], indirect=True)
def test_strangers_do_not_take_all_files_of_the_process(server: Server) -> None:
    """With at most 300 files, a connected member is served, and others after the strangers end."""
    stub = Stub(services.CONTROL, server.address, TOKEN)
    with contextlib.ExitStack() as stack, contextlib.closing(stub):
        assert stub.call(pb.GetStatusRequest(), timeout_s=HANG_S).job == "j"
        strangers = [stack.enter_context(server.connect()) for _ in range(500)]
        wait_for(lambda: server.files > 100)
        assert server.files < 200
        assert stub.call(pb.GetStatusRequest(), timeout_s=HANG_S).job == "j"
        assert all(map(ends, strangers))
        assert serves(server)


def test_sizes_that_are_only_announced_take_no_memory(server: Server) -> None:
    """Sizes of a TLS record, and of a message of the handshake, which may have several records."""
    assert serves(server)
    before = server.mib
    message = b"\x01" + (0xFFFFFF).to_bytes(3, "big") + bytes(16_000)
    for record in (
        b"\x16\x03\x01\xff\xff" + bytes(65_535),
        b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message,
        b"\x17\x03\x03\x40\x00" + bytes(16_384),
    ):
        for _ in range(20):
            with server.connect() as stranger:
                with contextlib.suppress(OSError):
                    stranger.sendall(record)
                    for _ in range(100):
                        stranger.sendall(b"\x16\x03\x01\x3f\xff" + bytes(0x3FFF))
                assert ends(stranger)
    assert serves(server)
    assert server.mib - before < GROWTH_MIB


def test_a_certificate_of_another_job_or_none_opens_nothing(
    server: Server, member: Callable[[str], ssl.SSLContext]
) -> None:
    """The stranger does not look at what the server presents."""
    other = member(OTHER)
    for context in (other, _CONTEXT):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for _ in range(20):
            with (
                server.connect() as plain,
                contextlib.suppress(OSError),
                context.wrap_socket(plain) as stranger,
            ):
                stranger.sendall(PREFACE + bytes(9))
                # Settings of HTTP/2 would come first from a server that goes on.
                assert stranger.recv(9) == b""
    assert serves(server)


def test_a_member_that_talks_nonsense_ends_its_own_connection(
    server: Server, member: Callable[[str], ssl.SSLContext]
) -> None:
    """After the handshake it sends no HTTP/2, and a frame that announces 16 MB."""
    context, chance = member(TOKEN), random.Random(11)
    host = certificates.of_token(TOKEN).host
    settings = bytes(3) + b"\x04" + bytes(5)
    headers = (0xFFFFFF).to_bytes(3, "big") + b"\x01\x04" + (1).to_bytes(4, "big")
    assert serves(server)
    before = server.mib
    for turn in range(40):
        sent = [chance.randbytes(500), PREFACE + chance.randbytes(500),
                PREFACE + settings + headers + chance.randbytes(5000)][turn % 3]  # fmt: skip
        with server.connect() as plain, context.wrap_socket(plain, server_hostname=host) as peer:
            with contextlib.suppress(OSError):
                peer.sendall(sent)
                plain.shutdown(socket.SHUT_WR)
            assert ends(peer)
    assert serves(server)
    assert server.mib - before < GROWTH_MIB
