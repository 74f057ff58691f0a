"""The token of a job and the keys that are derived from it. No other secret is shared.

Public keys are derived from the token too, and any client that reaches a port can request them. An
attacker can use a public key to test guesses of the token offline, so the token must be random. A
slower derivation (scrypt, 58 ms) would add a third to the start of each process
(``benchmarks/encryption.py``) without making a weak token safe.
"""

from __future__ import annotations

import hashlib

from torch_edl.config.environment import ENV_TOKEN
from torch_edl.errors import UsageError

MIN_TOKEN = 32
"""Smallest number of characters of a token; 32 hexadecimal digits have 128 bits."""
_MIN_DISTINCT = 8  # 32 random hexadecimal digits have fewer with a probability of 4e-8


def derived(token: str, purpose: bytes, size: int = 32) -> bytes:
    """Derive a secret of ``size`` bytes (at most 64) for a purpose (at most 16 bytes).

    BLAKE2b with the personalization parameter of RFC 7693. Secrets of different purposes or sizes
    reveal nothing about each other or about the token.
    """
    return hashlib.blake2b(token.encode(), digest_size=size, person=purpose).digest()


def call_key(token: str) -> str:
    """Return the header that proves the token in each gRPC call without revealing the token.

    The key is needed because other jobs may use the same certificates (``TORCH_EDL_TLS``).
    """
    return derived(token, b"edl-call").hex()


def require_text(token: str) -> None:
    """Check that the token has printable ASCII characters only, as it may come from a file.

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
