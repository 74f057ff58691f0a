"""Connections: encrypted, and between processes that have the token, or the folder."""

from __future__ import annotations

import contextlib
import datetime
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.other_user import false_listener, needs_root
from tests.waiting import HANG_S
from torch_edl.config.environment import ENV_TLS
from torch_edl.errors import UsageError
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import REFUSED, Stub
from torch_edl.wire.endpoint import REMOTE, free_port
from torch_edl.wire.security import certificates, keys
from torch_edl.wire.server import serve

TOKEN = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2
FAR, NEAR = f"{REMOTE}127.0.0.1", "127.0.0.1"
CODES = grpc.StatusCode
Connect = Callable[..., Stub]


@pytest.fixture
def connect() -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:

        def made(address: str, token: str = TOKEN) -> Stub:
            return stack.enter_context(contextlib.closing(Stub(services.CONTROL, address, token)))

        yield made


class Served:
    """A server that answers every call with a name."""

    def __init__(self, token: str = TOKEN, address: str = f"{NEAR}:0") -> None:
        handlers = dict.fromkeys(
            services.methods(services.CONTROL), lambda r, c: pb.GetStatusResponse(job="ours")
        )
        self._server, port = serve(
            services.CONTROL, handlers, address=address, token=token, threads=2
        )
        self.address = f"{address.rpartition(':')[0]}:{port}"

    def close(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def listen() -> Iterator[Callable[..., str]]:
    """``listen(host)``: the address of a server."""
    with contextlib.ExitStack() as stack:

        def started(host: str = NEAR, token: str = TOKEN, port: int = 0) -> str:
            return stack.enter_context(contextlib.closing(Served(token, f"{host}:{port}"))).address

        yield started


def ask(stub: Stub, *, wait: bool = False) -> str:
    return str(stub.call(pb.GetStatusRequest(), timeout_s=HANG_S, wait=wait).job)


def refused(stub: Stub, *, wait: bool = False) -> tuple[CODES, str]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(stub, wait=wait)
    return caught.value.code(), caught.value.details()


def test_processes_that_have_the_token_accept_each_other(
    listen: Callable[..., str], connect: Connect
) -> None:
    """The other process derives its certificates by itself."""
    address = listen()
    assert ask(connect(address)) == "ours"
    program = f"""
from torch_edl.wire import master_pb2, services
from torch_edl.wire.channel import Stub
stub = Stub(services.CONTROL, {address!r}, {TOKEN!r})
print(stub.call(master_pb2.GetStatusRequest(), timeout_s=100).job)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "ours\n", done.stderr


def test_copies_of_the_certificates_have_the_same_keys_and_names() -> None:
    one, two, other = (certificates.of_token(token) for token in (TOKEN, TOKEN, OTHER))
    assert one.key == two.key != other.key
    parsed = [x509.load_pem_x509_certificate(each.ca) for each in (one, two, other)]
    assert parsed[0].public_key() == parsed[1].public_key() != parsed[2].public_key()
    leaf = x509.load_pem_x509_certificate(two.certificate)
    leaf.verify_directly_issued_by(parsed[0])
    assert leaf.public_key() != parsed[0].public_key()


@pytest.mark.parametrize("wait", [False, True])
def test_another_token_is_rejected_at_once(
    listen: Callable[..., str], connect: Connect, wait: bool
) -> None:
    code, details = refused(connect(listen(), OTHER), wait=wait)
    assert code in REFUSED
    assert "TORCH_EDL_TOKEN" in details
    assert OTHER not in details


@pytest.mark.parametrize("wait", [False, True])
def test_a_server_that_speaks_plain_is_named(connect: Connect, wait: bool) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"{NEAR}:{server.add_insecure_port(f'{NEAR}:0')}"
    server.start()
    code, details = refused(connect(address), wait=wait)
    server.stop(None).wait()
    assert code in REFUSED
    assert "does not speak TLS" in details


@needs_root
def test_a_process_of_another_user_at_the_port_receives_no_token(connect: Connect) -> None:
    port = free_port()
    with false_listener(port) as received:
        code, details = refused(connect(f"{NEAR}:{port}"))
    assert received
    assert TOKEN.encode() not in b"".join(received)
    assert (code, "does not speak TLS" in details) == (CODES.UNAUTHENTICATED, True)


def test_a_connection_to_itself_is_no_refusal(connect: Connect) -> None:
    """A port that nobody listens at may be the one that a caller is given: it hears itself."""

    def echo() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer = server.accept()[0]
                with peer:
                    while heard := peer.recv(1 << 16):
                        peer.sendall(heard)

    with socket.create_server((NEAR, 0)) as server:
        thread = threading.Thread(target=echo)
        thread.start()
        code, _ = refused(connect(f"{NEAR}:{server.getsockname()[1]}"))
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert code is CODES.UNAVAILABLE


def test_a_client_without_the_certificate_or_the_key_is_rejected(
    listen: Callable[..., str], connect: Connect
) -> None:
    """The key alone opens nothing, nor does a certificate alone, which may be that of a folder."""
    address, own = listen(), certificates.of_token(TOKEN)
    name = [("grpc.ssl_target_name_override", own.host)]
    member = grpc.ssl_channel_credentials(own.ca, own.key, own.certificate)
    for channel, key, code in (
        (
            grpc.secure_channel(address, grpc.ssl_channel_credentials(own.ca), name),
            keys.call_key(TOKEN),
            CODES.UNAVAILABLE,
        ),
        (grpc.insecure_channel(address), keys.call_key(TOKEN), CODES.UNAVAILABLE),
        (grpc.secure_channel(address, member, name), keys.call_key(OTHER), CODES.UNAUTHENTICATED),
        (grpc.secure_channel(address, member, name), f"Bearer {TOKEN}", CODES.UNAUTHENTICATED),
    ):
        with channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/torch_edl.Control/GetStatus")(
                b"", timeout=HANG_S, metadata=(("authorization", key),)
            )
        assert caught.value.code() is code
    assert ask(connect(address)) == "ours"


def test_one_that_has_answered_is_waited_for_where_another_has_its_port(
    listen: Callable[..., str], connect: Connect
) -> None:
    """A worker outlives a restart of its master, whoever listens at the port meanwhile."""
    with contextlib.closing(Served()) as ours:
        stub = connect(ours.address)
        assert ask(stub) == "ours"
    with contextlib.closing(Served(OTHER, ours.address)):
        assert refused(connect(ours.address))[0] is CODES.UNAUTHENTICATED
        assert refused(stub)[0] is CODES.UNAVAILABLE
    with contextlib.closing(Served(TOKEN, ours.address)):
        assert ask(stub, wait=True) == "ours"


def test_a_server_that_comes_late_is_waited_for(
    listen: Callable[..., str], connect: Connect
) -> None:
    port = free_port()
    stub = connect(f"{NEAR}:{port}")
    assert refused(stub)[0] is CODES.UNAVAILABLE
    late = stub.start(pb.GetStatusRequest(), timeout_s=HANG_S, wait=True)
    assert not late.done()
    listen(port=port)
    assert late.result().job == "ours"


@pytest.mark.parametrize("token", ["", "letmein", "a token of this test", "ab" * 40])
def test_a_token_that_can_be_guessed_is_rejected_off_loopback_only(
    listen: Callable[..., str], connect: Connect, token: str
) -> None:
    for start in (lambda: listen(FAR, token), lambda: connect("10.0.0.1:1", token)):
        with pytest.raises(UsageError, match="openssl rand -base64 32") as caught:
            start()
        assert not token or token not in str(caught.value)
    assert ask(connect(listen(NEAR, token), token)) == "ours"


@pytest.mark.parametrize("token", ["a token\n", "n\u00e4me"])
def test_a_token_that_cannot_travel_is_named(
    listen: Callable[..., str], connect: Connect, token: str
) -> None:
    for start in (lambda: listen(NEAR, token), lambda: connect(f"{NEAR}:1", token)):
        with pytest.raises(UsageError, match=r"TORCH_EDL_TOKEN: .* printable ASCII"):
            start()


def test_purposes_have_different_secrets() -> None:
    secrets = [keys.derived(TOKEN, purpose) for purpose in (b"a", b"b")]
    secrets += [keys.derived(OTHER, b"a"), keys.derived(TOKEN, b"a", 48)[:32]]
    assert len(set(secrets)) == 4


class Authority:
    """Issues certificates as cert-manager does."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def write(self, folder: Path, host: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        folder.mkdir(exist_ok=True)
        (folder / "ca.crt").write_bytes(self._issue(self._key, None))
        (folder / "tls.crt").write_bytes(self._issue(key, host))
        (folder / "tls.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )

    def _issue(self, key: ec.EllipticCurvePrivateKey, host: str | None) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=x509.Name([]) if host else self._name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(hours=1),
            not_valid_after=now + datetime.timedelta(hours=1),
        ).add_extension(x509.BasicConstraints(host is None, None), critical=True)
        if host:
            names = x509.SubjectAlternativeName([x509.DNSName(host)])
            builder = builder.add_extension(names, critical=True)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Authority("one").write(tmp_path / "tls", "a.b.example")
    monkeypatch.setenv(ENV_TLS, str(tmp_path / "tls"))
    return tmp_path / "tls"


def test_certificates_of_a_folder_are_used_in_place_of_the_tokens(
    folder: Path, listen: Callable[..., str], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = listen()
    assert ask(connect(address)) == "ours"
    # They open no door for another job.
    assert refused(connect(address, OTHER))[0] is CODES.UNAUTHENTICATED
    monkeypatch.delenv(ENV_TLS)
    assert refused(connect(address))[0] is CODES.UNAUTHENTICATED
    monkeypatch.setenv(ENV_TLS, str(folder))
    assert ask(connect(address)) == "ours"


def test_rotated_certificates_are_taken_at_the_next_connection(
    folder: Path, listen: Callable[..., str], connect: Connect
) -> None:
    address = listen()
    assert ask(connect(address)) == "ours"
    before = connect(address)
    Authority("two").write(folder, "a.b.example")
    assert ask(connect(address)) == "ours"
    assert refused(before)[0] is CODES.UNAUTHENTICATED
    (folder / "tls.crt").write_text("half of a cert")
    assert refused(before)[0] is CODES.UNAUTHENTICATED  # and the server lives


def test_a_folder_that_cannot_be_used_is_named(folder: Path, connect: Connect) -> None:
    def problem() -> str:
        with pytest.raises(UsageError) as caught:
            connect(f"{NEAR}:1")
        return str(caught.value)

    secret = (folder / "tls.key").read_text()
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (folder / name).write_text("no PEM")
        assert "must be PEM certificates" in problem()
        Authority("one").write(folder, "a.b.example")
    (folder / "tls.key").write_text(secret)
    assert "tls.key is not the private key of tls.crt" in problem()
    (folder / "tls.key").unlink()
    assert f"cannot read {folder / 'tls.key'} (No such file or directory)" in problem()
