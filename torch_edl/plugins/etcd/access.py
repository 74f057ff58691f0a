"""Credentials for etcd, from the environment variables of ``etcdctl``.

No secret is on a command line or in the configuration of a job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_edl.errors import UsageError

_CA, _CERT, _KEY = "ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"
_USER, _PASSWORD = "ETCDCTL_USER", "ETCDCTL_PASSWORD"


@dataclass(frozen=True, kw_only=True)
class EtcdAccess:
    """Certificates and user of a connection to etcd; the default has neither."""

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
