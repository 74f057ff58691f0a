"""A store in etcd, which the machines of a cluster share.

The client is etcd3gw, which OpenStack maintains. It uses the JSON gateway that every etcd since 3.4
serves at its client port, and is typed. Clients of etcd's gRPC API would tie torch-edl to the
protobuf release that their code was generated for, and the best known one is not maintained.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch_edl.errors import StoreConflictError, UsageError
from torch_edl.interfaces import Entry, Store

try:
    import requests
    from etcd3gw.client import Etcd3Client
    from etcd3gw.exceptions import (
        ConnectionFailedError,
        ConnectionTimeoutError,
        Etcd3Exception,
        InternalServerError,
    )
except ImportError as missing:
    raise UsageError(
        "--store etcd://...: the client of etcd is not installed: pip install 'torch-edl[etcd]'"
    ) from missing

_API = "/v3/"  # served by etcd 3.4 and later
_ANSWER_S = 3.0
_TOKEN = "Authorization"
_LARGEST = 1 << 28
_UNANSWERED = (ConnectionFailedError, ConnectionTimeoutError, InternalServerError)
_TOO_LARGE = "start etcd with a larger --max-request-bytes"
_FIXES = {
    "request is too large": _TOO_LARGE,
    "message larger than max": _TOO_LARGE,
    "database space exceeded": "run `etcdctl compact` and `etcdctl alarm disarm`, and start etcd "
    "with --auto-compaction-retention",
    "Not Found": "use etcd 3.4 or later, and its client port",
    "closed connection without response": "if it expects TLS, write --store etcds://HOST:PORT",
    "user name is empty": "set ETCDCTL_USER and ETCDCTL_PASSWORD",
    "authentication failed": "correct ETCDCTL_USER and ETCDCTL_PASSWORD",
    "permission denied": "grant the user of ETCDCTL_USER the keys below /torch-edl/",
    "certificate verify failed": "name the certificate of its authority in ETCDCTL_CACERT",
    "certificate required": "name a certificate and its key in ETCDCTL_CERT and ETCDCTL_KEY",
}
# A token expires, and a restarted etcd no longer has earlier tokens.
_SIGN_IN_AGAIN = ("invalid auth token", "revision of auth store is old")

_CA, _CERT, _KEY = "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"
_USER, _PASSWORD = "ETCDCTL_USER", "ETCDCTL_PASSWORD"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EtcdAccess:
    """Certificates and user of a connection to etcd; the default has neither. No secret is on a
    command line or in the configuration of a job."""

    tls: bool = False
    ca: str = ""
    """File of the certificates that verify the etcd; empty: those of the Python package certifi."""
    cert: str = ""
    """File of the client certificate; empty: none."""
    key: str = ""
    user: str = ""
    """Name of the user; empty: none."""
    password: str = ""

    @classmethod
    def from_environment(
        cls, variables: Mapping[str, str] = os.environ, *, tls: bool
    ) -> EtcdAccess:
        """Read the variables of etcdctl.

        Args:
            tls: True if the connection is encrypted.

        Raises:
            UsageError: a file or a variable is missing.
        """
        files = {name: variables.get(name, "") for name in (_CA, _CERT, _KEY)} if tls else {}
        for name, file in files.items():
            if file and not Path(file).is_file():
                raise UsageError(f"{name} {file}: no such file; name a PEM file")
        if bool(files.get(_CERT)) != bool(files.get(_KEY)):
            raise UsageError(f"{_CERT} and {_KEY}: one is set; a certificate needs its key")
        # As in etcdctl: NAME:PASSWORD in one variable, or the password in a variable of its own.
        user, password = variables.get(_USER, ""), variables.get(_PASSWORD, "")
        if not password:
            user, _, password = user.partition(":")
        if user and not password:
            raise UsageError(f"{_USER} {user}: no password; set {_PASSWORD}")
        return cls(
            tls=tls,
            ca=files.get(_CA, ""),
            cert=files.get(_CERT, ""),
            key=files.get(_KEY, ""),
            user=user,
            password=password,
        )


class EtcdStore(Store):
    """Implements :class:`~torch_edl.interfaces.Store`. Revisions are those of etcd.

    Values are compressed: etcd keeps each version of a key until a compaction, and accepts at most
    1.5 MB per request.

    Args:
        endpoints: addresses HOST:PORT of the members. The member that answered last is asked first.
        prefix: prefix of all keys, used by no other writer.
        access: certificates and user.
    """

    # Long enough for an etcd that restarts or is unreachable for ten seconds.
    lock_ttl_s = 15.0

    def __init__(
        self, endpoints: Sequence[str], prefix: str, access: EtcdAccess | None = None
    ) -> None:
        self._access = access or EtcdAccess()
        self._mutex = threading.Lock()  # a session of requests must be used by one thread at a time
        self._prefix = f"{prefix}/".encode()
        # Proxies in environment variables are meant for the web.
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = self._access.ca or True
        if self._access.cert:
            self._session.cert = (self._access.cert, self._access.key)
        self._clients = [self._client(endpoint) for endpoint in endpoints]

    def get(self, key: str) -> Entry | None:
        found = self._ask(lambda client: client.get(self._key(key), metadata=True))
        if not found:
            return None
        value, about = found[0]
        return Entry(self._unpacked(key, value), int(about["mod_revision"]))

    def commit(self, puts: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        writes = [
            {"request_put": {"key": self._coded(key), "value": _base64(zlib.compress(value, 1))}}
            for key, value in puts.items()
        ]
        return self._transaction(writes, expected)

    def clear(self, expected: Mapping[str, int]) -> None:
        end = self._prefix[:-1] + bytes([self._prefix[-1] + 1])
        everything = {"key": _base64(self._prefix), "range_end": _base64(end)}
        self._transaction([{"request_delete_range": everything}], expected)

    def close(self) -> None:
        with self._mutex:
            self._session.close()

    def _client(self, endpoint: str) -> Etcd3Client:
        host, _, port = endpoint.rpartition(":")
        return Etcd3Client(
            host.strip("[]"),
            int(port),
            protocol="https" if self._access.tls else "http",
            timeout=_ANSWER_S,
            api_path=_API,
            session=self._session,
        )

    def _signed_in(self, client: Etcd3Client, call: Callable[[Etcd3Client], T]) -> T:
        """Return the answer to a call that carries the token of the user, if there is a user."""
        if not self._access.user:
            return call(client)
        if _TOKEN not in self._session.headers:
            self._sign_in(client)
        try:
            return call(client)
        except Etcd3Exception as error:  # etcd rejected the call without an effect
            if not any(sign in str(error.detail_text) for sign in _SIGN_IN_AGAIN):
                raise
            self._sign_in(client)
            return call(client)

    def _sign_in(self, client: Etcd3Client) -> None:
        self._session.headers.pop(_TOKEN, None)
        user = {"name": self._access.user, "password": self._access.password}
        answer = client.post(client.get_url("/auth/authenticate"), json=user)
        self._session.headers[_TOKEN] = answer["token"]

    def _transaction(self, writes: list[dict[str, Any]], expected: Mapping[str, int]) -> int:
        """Compare revisions and write in one transaction of etcd, and return the new revision."""
        compare = [
            {"key": self._coded(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}
            for key, revision in expected.items()
        ]
        unanswered: list[str] = []
        payload = {"compare": compare, "success": writes, "failure": []}
        done = self._ask(lambda client: client.transaction(payload), unanswered)
        if done.get("succeeded"):
            return int(done["header"]["revision"])
        revisions = ", ".join(f"{key} at revision {number}" for key, number in expected.items())
        conflict = f"expected was {revisions}"
        if unanswered:  # a member that did not answer may have committed the write
            raise OSError(f"{'; '.join(unanswered)}; {conflict}")
        raise StoreConflictError(conflict)

    def _ask(self, call: Callable[[Etcd3Client], T], unanswered: list[str] | None = None) -> T:
        """Return the answer of the first member that answers.

        Args:
            unanswered: list to which an error is added for each member that did not answer.
        """
        silent = [] if unanswered is None else unanswered
        with self._mutex:
            for client in list(self._clients):
                try:
                    return self._signed_in(client, call)
                except _UNANSWERED as error:
                    silent.append(
                        f"etcd at {client.base_url} does not answer ({_text(error)}); "
                        "start it, or correct --store"
                    )
                    self._clients.append(self._clients.pop(0))
                except Etcd3Exception as error:
                    raise OSError(f"etcd at {client.base_url}: {_text(error)}") from error
                except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    raise OSError(f"{client.base_url} is no etcd: {error}") from error
        raise OSError("; ".join(silent))

    def _key(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _coded(self, key: str) -> str:
        return _base64(self._key(key))

    def _unpacked(self, key: str, value: bytes) -> bytes:
        unpack = zlib.decompressobj()
        try:
            found = unpack.decompress(value, _LARGEST)
        except zlib.error as error:
            raise OSError(f"etcd: {self._key(key).decode()}: {error}") from error
        if not unpack.eof:
            raise OSError(f"etcd: {self._key(key).decode()}: cut, or above {_LARGEST} bytes")
        return found


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _text(error: Etcd3Exception) -> str:
    """Return the message of etcd or of the operating system, with the fix if one is known."""
    text = error.detail_text or str(error)
    if found := re.search(r"\[Errno [0-9]+\] ([A-Za-z ]+)", text):
        return found[1]
    if isinstance(error, ConnectionTimeoutError):
        return f"no answer within {_ANSWER_S:.0f} s"
    try:
        said = json.loads(text)
        text = said.get("error") or said.get("message") or text
    except (ValueError, AttributeError):
        pass
    if found := re.search(r"\[SSL[^]]*\] ?([^(]+)", text):
        text = found[1]
    text = text.strip()[:200]
    return text + "".join(f"; {fix}" for sign, fix in _FIXES.items() if sign in text)
