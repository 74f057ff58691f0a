"""Formats of files, a module each: which bytes are record i, in blocks that decode by themselves.
No opening of paths and URLs here (``storage``), and nothing about other formats in any of them."""
