"""How the master reaches an etcd: by the environment variables of ``etcdctl``, so that no secret is
on a command line or in the configuration of a job."""

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
    """Certificates and a user; the default is a connection without either."""

    tls: bool = False
    ca: str = ""
    """File of the certificates that the etcd is checked with; empty: those of the Python package
    certifi."""
    cert: str = ""
    """File of the certificate that the etcd asks for; empty: the etcd asks for none."""
    key: str = ""
    user: str = ""
    """Empty: the etcd asks for none."""
    password: str = ""

    @classmethod
    def from_environment(
        cls, variables: Mapping[str, str] = os.environ, *, tls: bool
    ) -> EtcdAccess:
        """What the variables of etcdctl say.

        Args:
            tls: the connection is encrypted.

        Raises:
            UsageError: a file is missing, or a variable.
        """
        files = {name: variables.get(name, "") for name in (_CA, _CERT, _KEY)} if tls else {}
        for name, file in files.items():
            if file and not Path(file).is_file():
                raise UsageError(f"{name} {file}: no such file; name a PEM file")
        if bool(files.get(_CERT)) != bool(files.get(_KEY)):
            raise UsageError(f"{_CERT} and {_KEY}: one is set; a certificate needs its key")
        # As etcdctl takes them: NAME:PASSWORD, or the password in a variable of its own.
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
