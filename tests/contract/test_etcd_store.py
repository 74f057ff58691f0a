"""An etcd that is away, closed to the caller or none: what is said, and what is ridden through."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from etcd3gw.client import Etcd3Client

from master.runtime.store import Lock
from tests.etcd_server import Etcd
from torch_edl.errors import StoreConflictError, UsageError
from torch_edl.plugins.etcd.store import EtcdAccess, EtcdStore


def test_an_etcd_that_is_away_is_named_and_ridden_through(etcd: Etcd) -> None:
    now = [100.0]
    store = EtcdStore([etcd.endpoint], "/tests/away")
    lock = Lock(store, "me", clock=lambda: now[0])
    lock.acquire()
    lock.put({"a": b"1"})
    etcd.kill()
    for use in (lambda: lock.put({}), lambda: store.get("a")):
        with pytest.raises(OSError, match=rf"{etcd.endpoint}.*refused.*start it, or correct --st"):
            use()
    etcd.start()
    now[0] += 10
    lock.put({})
    assert lock.valid_until == now[0] + store.lock_ttl_s
    assert store.get("a").value == b"1"
    store.close()


def test_a_member_of_etcd_that_is_away_is_passed_over(shared_etcd: Etcd) -> None:
    store = EtcdStore(["127.0.0.1:1", shared_etcd.endpoint], "/tests/members")
    revision = store.commit({"a": b"1"}, {"a": 0})
    assert store.get("a") == (b"1", revision)
    with pytest.raises(StoreConflictError):
        store.commit({"a": b"2"}, {"a": 0})
    store.close()


def test_a_write_that_is_too_large_for_etcd_says_what_to_do(shared_etcd: Etcd) -> None:
    store = EtcdStore([shared_etcd.endpoint], "/tests/large")
    for size in (1_600_000, 4_000_000):
        with pytest.raises(OSError, match=r"large.*--max-request-bytes"):
            store.commit({"a": os.urandom(size)}, {})
    assert store.get("a") is None
    store.close()


def test_a_server_that_is_no_etcd_is_named() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        store = EtcdStore([f"127.0.0.1:{server.server_port}"], "/tests/other")
        with pytest.raises(OSError, match=f"{server.server_port} is no etcd"):
            store.get("a")
        store.close()
        server.shutdown()
        thread.join()


def test_a_value_that_another_program_wrote_is_named(shared_etcd: Etcd) -> None:
    host, port = shared_etcd.endpoint.split(":")
    Etcd3Client(host, int(port)).put("/tests/foreign/state", "hello")
    store = EtcdStore([shared_etcd.endpoint], "/tests/foreign")
    with pytest.raises(OSError, match="/tests/foreign/state"):
        store.get("state")
    store.close()


# ---- an etcd with TLS and a password ----


def test_a_token_that_etcd_forgot_is_asked_for_again(locked_etcd: Etcd, access: EtcdAccess) -> None:
    with contextlib.closing(EtcdStore([locked_etcd.endpoint], "/tests/token", access)) as store:
        first = store.commit({"a": b"1"}, {})
        locked_etcd.kill()
        locked_etcd.start()
        assert store.commit({"a": b"2"}, {"a": first}) > first


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ({"ca": ""}, "certificate verify failed.*ETCDCTL_CACERT"),
        ({"cert": "", "key": ""}, "does not answer|ETCDCTL_CERT"),
        ({"password": "other"}, "authentication failed.*correct ETCDCTL_USER"),
        ({"user": ""}, "user name is empty.*set ETCDCTL_USER"),
        ({"tls": False}, "closed connection without .*TLS, write --store etcds://"),
    ],
)
def test_what_is_wrong_with_the_access_is_said(
    locked_etcd: Etcd, access: EtcdAccess, change: dict[str, Any], fix: str
) -> None:
    given = replace(access, **change)
    with (
        contextlib.closing(EtcdStore([locked_etcd.endpoint], "/tests/no", given)) as store,
        pytest.raises(OSError, match=fix),
    ):
        store.get("a")


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"ETCDCTL_CACERT": "/nowhere.pem"}, "ETCDCTL_CACERT /nowhere.pem: no such file"),
        ({"ETCDCTL_CERT": __file__}, "a certificate needs its key"),
        ({"ETCDCTL_USER": "root"}, "ETCDCTL_USER root: no password; set ETCDCTL_PASSWORD"),
    ],
)
def test_variables_that_do_not_fit(variables: dict[str, str], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        EtcdAccess.from_environment(variables, tls=True)


def test_the_password_has_a_variable_of_its_own() -> None:
    given = {"ETCDCTL_USER": "a:b", "ETCDCTL_PASSWORD": "c:d"}
    found = EtcdAccess.from_environment(given, tls=False)
    assert (found.user, found.password) == ("a:b", "c:d")
