"""The files of the page, and one file that contains all of it with its data."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

_SCRIPTS = (
    "format.js",
    "cursor.js",
    "chart.js",
    "timeline.js",
    "panels.js",
    "servers.js",
    "records.js",
    "app.js",
)
_STYLES = ("style.css",)


@functools.cache
def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def _style() -> bytes:
    return "\n".join(map(_asset, _STYLES)).encode()


@functools.cache
def _script() -> bytes:
    return "\n".join(map(_asset, _SCRIPTS)).encode()


@functools.cache
def shell() -> bytes:
    """Return the page without data, whose style and script are files of the same server."""
    head = '<link rel="stylesheet" href="style.css">'
    return _assembled(head, '<script src="app.js"></script>')


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "/style.css": (_style, "text/css"),
    "/app.js": (_script, "text/javascript"),
}
"""Content and type of each file that the page loads."""


def exported(data: dict[str, Any]) -> bytes:
    """Return one file that shows the data in any browser, and loads nothing.

    Args:
        data: answers of the server by their name, as JSON values.
    """
    style, script = _style().decode(), _script().decode()
    # "<" could end the element; as an escape, JSON means the same.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; "
        f"script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    body = f'<script type="application/json" id="data">{text}</script>\n<script>{script}</script>'
    return _assembled(head, body)


def _assembled(head: str, body: str) -> bytes:
    page = _asset("page.html")
    return page.replace("<!-- head -->", head).replace("<!-- body -->", body).encode()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
