"""The URL ``--store etcd://HOST:PORT[,HOST:PORT]``, or ``etcds://`` with TLS.

See :class:`torch_edl.interfaces.StoreType`.
"""

from __future__ import annotations

import re

from torch_edl.errors import UsageError
from torch_edl.interfaces import Store

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")


def check(url: str) -> None:
    """Raise UsageError unless the URL names the members of an etcd."""
    endpoints(url)


def open(url: str, job: str) -> Store:
    """Open the store of a job, with the certificates and the user from the environment.

    Raises:
        UsageError: the client of etcd is not installed, or an environment variable is wrong.
    """
    # Imported here: the client of etcd belongs to an extra, which a client of a cluster does not
    # need.
    from torch_edl.plugins.etcd.store import EtcdAccess, EtcdStore

    access = EtcdAccess.from_environment(tls=url.startswith("etcds:"))
    return EtcdStore(endpoints(url), f"/torch-edl/jobs/{job}", access)


def endpoints(url: str) -> list[str]:
    """Return the addresses HOST:PORT of the members.

    Raises:
        UsageError: an address is missing or wrong.
    """
    found = url.partition("://")[2].rstrip("/").split(",")
    for address in found:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[2]) < 1 << 16:
            raise UsageError(
                f"--store {url}: write etcd://HOST:PORT[,HOST:PORT] or, with TLS, "
                "etcds://HOST:PORT, such as etcd://127.0.0.1:2379"
            )
    return found
