"""Encryption and authentication of gRPC connections: mutual TLS, on loopback too.

Any user of a machine can listen at a free loopback port, such as the port of a master that is being
restarted. Only a process of the job has the certificate that the client expects.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import TYPE_CHECKING

import grpc

from torch_edl.config.environment import ENV_TLS, ENV_TOKEN
from torch_edl.errors import UsageError
from torch_edl.wire import keepalive
from torch_edl.wire.endpoint import bare, is_remote
from torch_edl.wire.security.keys import require_strong

if TYPE_CHECKING:
    from torch_edl.wire.security.certificates import Identity

log = logging.getLogger(__name__)

# Parts of error messages of BoringSSL and gRPC if the peer is no process of this job.
_PLAIN_PEER = "WRONG_VERSION_NUMBER"
_OTHER_PEER = ("SSL_ERROR_SSL", "Hostname Verification Check failed")
# No process listens: Linux may connect a socket to itself at a port of the ephemeral range.
_OWN_HELLO = "UNEXPECTED_MESSAGE"


def channel(address: str, token: str, options: list[tuple[str, object]]) -> grpc.Channel:
    """Create a channel to an address.

    A channel to a remote address detects a lost machine (:mod:`torch_edl.wire.keepalive`).

    Raises:
        UsageError: the token is too weak, or the folder of certificates cannot be used.
    """
    if is_remote(address):
        require_strong(token, address)
        options = [*options, *keepalive.CHANNEL_OPTIONS]
    own = identity(token)
    credentials = grpc.ssl_channel_credentials(own.ca, own.key, own.certificate)
    options = [*options, ("grpc.ssl_target_name_override", own.host)]
    return grpc.secure_channel(bare(address), credentials, options=options)


def listen(server: grpc.Server, address: str, token: str) -> int:
    """Bind a port of a server and return its number.

    Raises:
        UsageError: the token is too weak, or the folder of certificates cannot be used.
        RuntimeError: the port cannot be bound.
    """
    if is_remote(address):
        require_strong(token, address)
    folder = os.environ.get(ENV_TLS)
    if folder:
        credentials = _Folder(folder).credentials()
    else:
        own = _derived(token)
        credentials = grpc.ssl_server_credentials([(own.key, own.certificate)], own.ca, True)
    return int(server.add_secure_port(bare(address), credentials))


def identity(token: str) -> Identity:
    """Return the identity of a client, from the folder ``TORCH_EDL_TLS`` or from the token.

    Raises:
        UsageError: the folder of certificates cannot be used.
    """
    folder = os.environ.get(ENV_TLS)
    return _of_folder(folder) if folder else _derived(token)


def refusal(address: str, details: str) -> str:
    """Return an error message if the peer is no process of this job; empty for other failures,
    after which a retry may succeed.

    Args:
        details: the message of the failed call.
    """
    if _PLAIN_PEER in details:
        return (
            f"{address}: the process that listens there does not speak TLS, and nothing is sent in "
            "the clear; is it a process of a job, of this version of torch-edl?"
        )
    if _OWN_HELLO not in details and any(text in details for text in _OTHER_PEER):
        what = f"of the folder {ENV_TLS}" if os.environ.get(ENV_TLS) else f"of {ENV_TOKEN}"
        return (
            f"{address}: the certificate of what listens there is not {what}: set the same on all "
            "machines"
        )
    return ""


def _of_folder(folder: str) -> Identity:
    from torch_edl.wire.security import certificates

    return certificates.of_folder(folder)


@functools.lru_cache(maxsize=1)
def _derived(token: str) -> Identity:
    from torch_edl.wire.security import certificates

    return certificates.of_token(token)


class _Folder:
    """Server certificates from a folder, whose files are read again for each connection."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._identity = _of_folder(folder)
        self._problem = ""  # the last logged problem, which is not logged again

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(self._configuration(), self._renewed, True)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self._identity.key, self._identity.certificate)
        return grpc.ssl_server_certificate_configuration([pair], self._identity.ca)

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return renewed certificates for the next connection; None if they have not changed."""
        try:
            now = _of_folder(self._folder)
        except UsageError as error:  # the files are being replaced
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("%s; the certificates before are used on", error)
            return None
        self._problem = ""
        if now == self._identity:
            return None
        log.info("new certificates in %s", self._folder)
        self._identity = now
        return self._configuration()
