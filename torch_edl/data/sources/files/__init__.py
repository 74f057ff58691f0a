"""Formats of files, one module each. A format divides a file into blocks that can be decoded
independently. Paths and URLs are opened in ``storage``; a format does not depend on others."""
