"""The name of an SQL table or query: a URL, and after ``#`` what is read.

``postgresql://user@host/db#table=clicks&key=id`` or ``...#key=id&query=SELECT ...``, where the text
of a query extends to the end. A source adds ``last`` and ``keys``, so that all processes of a job
that open the source by its name read the same rows. Names have no passwords; these come from the
environment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlencode

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from torch_edl.errors import UsageError

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SECRET = re.compile(r"pass|pwd|secret|token|credential|key$", re.IGNORECASE)
_PARTS = ("table", "key", "last", "keys")
_EXAMPLE = "write for example postgresql://user@host/db#table=clicks&key=id"


@dataclass(frozen=True, kw_only=True)
class SqlName:
    """The parts of a name."""

    url: str
    """URL of SQLAlchemy, with ``${NAME}`` in place of a secret in the environment variable NAME."""
    key: str
    """Column by which the rows are ordered and found."""
    table: str = ""
    """Table as ``name`` or ``schema.name``; empty if there is a query."""
    query: str = ""
    last: str = ""
    """Largest key that belongs to the data; empty: no limit."""
    keys: str = ""
    """Digest of all keys; empty: not checked."""

    def __str__(self) -> str:
        parts = {name: getattr(self, name) for name in _PARTS}
        text = urlencode({name: value for name, value in parts.items() if value}, safe="/:")
        return f"{self.url}#{text}" + (f"&query={self.query}" if self.query else "")


def parse(text: str) -> SqlName:
    """Parse a name that a user or a source wrote, without a request to the database.

    Raises:
        UsageError: a part is missing, unknown or invalid, or contains a password. The message shows
            no password.
    """
    url, _, fragment = text.partition("#")
    shown = _checked_url(url)
    fragment, found, query = fragment.partition("query=")
    if found and fragment and not fragment.endswith("&"):  # a part whose name ends in "query"
        raise UsageError(f"{shown}#{fragment}: unknown part {fragment.split('&')[-1]}query")
    example = f"write for example '{shown}#table=clicks&key=id'"
    parts = dict(parse_qsl(fragment.strip("&"), keep_blank_values=True))
    known = {name: value for name, value in parts.items() if name in _PARTS}
    shown += f"#{urlencode(known, safe='/:')}" if known else ""
    if unknown := sorted(set(parts) - set(_PARTS)):
        raise UsageError(f"{shown}: unknown part {unknown[0]!r} behind #; {example}")
    if bool(parts.get("table")) == bool(query.strip()):
        raise UsageError(f"{shown}: name either a table or a query behind #; {example}")
    if not parts.get("key"):
        raise UsageError(
            f"{shown}: the key is missing: a column of integers or texts, each there once, that "
            f"the rows are found by; {example}"
        )
    return SqlName(url=_absolute(url), query=query.strip().rstrip(";"), **parts)


def connection_url(name: SqlName) -> tuple[URL, tuple[str, ...]]:
    """Return the ``sqlalchemy.URL`` of the connection, and its secrets, which no message may
    show.

    Raises:
        UsageError: an environment variable is not set.
    """
    url, secrets = _url(name.url), []

    def value(text: str) -> str:
        variable = _VARIABLE.fullmatch(text)
        if variable is None:
            return text
        found = os.environ.get(variable[1])
        if found is None:
            raise UsageError(f"{name.url}: the environment variable {variable[1]} is not set")
        secrets.append(found)
        return found

    if url.password:
        url = url.set(password=value(str(url.password)))
    query = {
        key: value(found) if isinstance(found, str) else found for key, found in url.query.items()
    }
    return url.set(query=query), tuple(secret for secret in secrets if secret)


def pinned(name: SqlName, last: str, keys: str) -> SqlName:
    """Return the name of the rows up to the key ``last``, whose keys have the digest ``keys``."""
    return replace(name, last=last, keys=keys)


def _url(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        # The text of the error may contain a password.
        raise UsageError(f"{text.partition(':')[0]}://...: not an URL; {_EXAMPLE}") from None


def _checked_url(text: str) -> str:
    """Return the URL without secrets, for messages."""
    url = _url(text)
    shown = str(url.set(query={}).render_as_string(hide_password=True))
    secret = url.password if url.password and not _VARIABLE.fullmatch(str(url.password)) else None
    named = [
        key
        for key, value in url.query.items()
        if _SECRET.search(key) and not (isinstance(value, str) and _VARIABLE.fullmatch(value))
    ]
    if secret or named:
        raise UsageError(
            f"{shown}: {named[0] if named else 'the password'} would be seen in logs and in the "
            "list of processes; leave it to the files or variables of the driver (PGPASSWORD, "
            "~/.pgpass), or write '${NAME}' for a variable of the environment"
        )
    if is_file(url) and url.database in (None, "", ":memory:"):
        raise UsageError(f"{shown}: workers do not see the memory of each other; name a file")
    return shown


def is_file(url: URL) -> bool:
    """Return True if the database is a file that the URL names by its path."""
    named = str(url.database).startswith("file:")  # a URL of SQLite itself
    return url.get_backend_name() in ("sqlite", "duckdb") and not named


def _absolute(text: str) -> str:
    """Return the URL with an absolute file path, since processes have other working folders."""
    url = _url(text)
    if not is_file(url):
        return text
    path = os.path.abspath(os.path.expanduser(str(url.database)))
    return str(url.set(database=path).render_as_string(hide_password=False))
