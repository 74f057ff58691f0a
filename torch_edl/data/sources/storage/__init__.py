"""Bytes of data files by path or URL: local files, objects of the stores that plugins read, and
unpacked gzip and zstd files. Records are defined in ``files``."""
