"""Recognition of formats by the first bytes of a file, for files without a suffix.

This module imports no format, so that a file is recognized even if the library that reads it is
missing. TFRecord, which needs the checksum of its header, has the function in its own module.
"""

from __future__ import annotations


def is_arrow(head: bytes) -> bool:
    """Return True for a file, a Feather file or a stream of Arrow."""
    return head.startswith((b"ARROW1", b"FEA1", b"\xff\xff\xff\xff"))


def is_avro(head: bytes) -> bool:
    """Return True for an Avro container file."""
    return head.startswith(b"Obj\x01")


def is_tar(head: bytes) -> bool:
    """Return True for a tar file."""
    return head[257:262] == b"ustar"
