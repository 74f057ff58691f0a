"""The token of a job and the keys that are derived from it. No other secret is shared.

Public keys are derived from the token too, and whoever reaches a port can ask for them. They
confirm a guess of the token without another connection, so the token must be one that nobody can
guess. A slower derivation (scrypt, 58 ms) would add a third to the start of each process
(``benchmarks/encryption.py``), and not mend a weak token.
"""

from __future__ import annotations

import hashlib

from torch_edl.environment import ENV_TOKEN
from torch_edl.errors import UsageError

MIN_TOKEN = 32
"""Characters of a token: 128 bits if they are hexadecimal digits."""
_MIN_DISTINCT = 8  # 32 random hexadecimal digits have fewer with a probability of 4e-8


def derived(token: str, purpose: bytes, size: int = 32) -> bytes:
    """Derive a secret of ``size`` bytes (at most 64) for a purpose (at most 16 bytes).

    BLAKE2b with the personalization parameter of RFC 7693. Secrets of different purposes or sizes
    reveal nothing about each other or about the token.
    """
    return hashlib.blake2b(token.encode(), digest_size=size, person=purpose).digest()


def call_key(token: str) -> str:
    """The header of each call of gRPC, which proves the token and does not tell it: where
    ``TORCH_EDL_TLS`` names certificates, another job may have them, too."""
    return derived(token, b"edl-call").hex()


def require_text(token: str) -> None:
    """Checks that the token is the same text on all machines.

    Raises:
        UsageError: the token has a character that is not printable ASCII, such as a line feed.
    """
    if not (token.isascii() and token.isprintable()):
        raise UsageError(
            f"{ENV_TOKEN}: a character that is not printable ASCII, such as the end of a line; set "
            "it to the output of `openssl rand -base64 32`"
        )


def require_strong(token: str, endpoint: str) -> None:
    """Check that the token cannot be guessed.

    Raises:
        UsageError: the token is too short or has too few different characters.
    """
    if len(token) < MIN_TOKEN or len(set(token)) < _MIN_DISTINCT:
        raise UsageError(
            f"{ENV_TOKEN}: {len(token)} characters, {len(set(token))} of them different; "
            f"whoever reaches {endpoint} can search for it, so it must have at least {MIN_TOKEN} "
            "random characters: set it to the output of `openssl rand -base64 32` on all machines"
        )
