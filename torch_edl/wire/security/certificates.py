"""TLS certificates, derived from the token of a job or read from a folder.

All processes of a job derive the same keys of an authority and of a leaf. Each process issues its
own copies of the two certificates. The signatures of the copies differ, but a certificate is
verified by the name and the key of the authority, which are equal. Every process presents the leaf
certificate and accepts no other, so each side of a connection proves that it has the token.

This module is imported for the first connection only: ``cryptography`` takes 0.1 s to import.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from torch_edl.config.environment import ENV_TLS
from torch_edl.errors import UsageError
from torch_edl.wire.security.keys import derived

CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
"""File names in the folder, as used by Kubernetes and cert-manager."""
_MAX_FILE_BYTES = 1 << 20

_HOST = "job.torch-edl"
# Not limited in time: clocks of machines may differ, and the keys live as long as the job.
_BEGIN = datetime.datetime(2000, 1, 1)
_END = datetime.datetime(9999, 12, 31, 23, 59, 59)
_ORDER = 0xFFFFFFFF_00000000_FFFFFFFF_FFFFFFFF_BCE6FAAD_A7179E84_F3B9CAC2_FC632551  # of P-256


@dataclass(frozen=True)
class Identity:
    """Certificates and key that a process presents and accepts, in PEM format."""

    ca: bytes
    certificate: bytes
    key: bytes
    host: str
    """Host name that the certificate of the other side must have."""


def of_token(token: str) -> Identity:
    """Derive the identity of the processes of a job from its token."""
    ca, leaf = _private_key(token, b"edl-tls-ca"), _private_key(token, b"edl-tls-leaf")
    names = x509.SubjectAlternativeName([x509.DNSName(_HOST)])
    return Identity(
        ca=_issue("torch-edl authority", ca, 1, x509.BasicConstraints(True, 0), by=ca),
        certificate=_issue(_HOST, leaf, 2, x509.BasicConstraints(False, None), names, by=ca),
        key=leaf.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        host=_HOST,
    )


def of_folder(folder: str) -> Identity:
    """Read the identity from ``ca.crt``, ``tls.crt`` and ``tls.key`` in a folder.

    The certificates of all processes of a job must have the first DNS name of ``tls.crt``.

    Raises:
        UsageError: a file cannot be read or has another format.
    """
    ca, certificate, key = (_read(Path(folder) / name) for name in (CA, CERTIFICATE, KEY))
    try:
        x509.load_pem_x509_certificates(ca)
        leaf = x509.load_pem_x509_certificate(certificate)
        secret = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{ENV_TLS}={folder}: {CA} and {CERTIFICATE} must be PEM certificates, and {KEY} a PEM "
            f"private key without a password: {error}"
        ) from error
    if secret.public_key() != leaf.public_key():
        raise UsageError(f"{ENV_TLS}={folder}: {KEY} is not the private key of {CERTIFICATE}")
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        host = names.get_values_for_type(x509.DNSName)[0]
    except (x509.ExtensionNotFound, IndexError):
        raise UsageError(
            f"{ENV_TLS}={folder}: {CERTIFICATE} has no DNS name (subjectAltName), by which the "
            "processes of a job recognize each other"
        ) from None
    return Identity(ca, certificate, key, host)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{ENV_TLS}: cannot read {path} ({error.strerror}); the folder must have {CA}, "
            f"{CERTIFICATE} and {KEY}"
        ) from error
    if len(content) > _MAX_FILE_BYTES:
        raise UsageError(f"{ENV_TLS}: {path} has more than {_MAX_FILE_BYTES} bytes")
    return content


def _private_key(token: str, purpose: bytes) -> ec.EllipticCurvePrivateKey:
    # FIPS 186-5, A.2.1: 64 more bits than the order make all keys about equally likely.
    number = int.from_bytes(derived(token, purpose, 48), "big") % (_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())


def _issue(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    serial: int,
    *extensions: x509.ExtensionType,
    by: ec.EllipticCurvePrivateKey,
) -> bytes:
    builder = x509.CertificateBuilder(
        issuer_name=_named("torch-edl authority"),
        subject_name=_named(name),
        public_key=key.public_key(),
        serial_number=serial,
        not_valid_before=_BEGIN,
        not_valid_after=_END,
    )
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints)
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
