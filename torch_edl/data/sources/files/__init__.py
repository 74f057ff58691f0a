"""Formats of files, one module each. A format divides a file into blocks that can be decoded
independently, and depends on no other format."""
