"""Bytes of data files by path or URL: local files, objects read by fsspec, and unpacked gzip and
zstd files. Records are defined in ``files``."""
