"""Bytes of data files by path or URL: on this machine, behind fsspec, unpacked from gzip and zstd.
No records here: what the bytes mean is told in ``files``."""
