"""The name of a table or query of an SQL database: an URL, and behind ``#`` what is read.

``postgresql://user@host/db#table=clicks&key=id`` or ``...#key=id&query=SELECT ...``, where the text
of a query goes to the end as it is. A source adds what it found (``last`` and ``keys``), so that
all processes of a job that open the source by its name read the same rows. Passwords are in no
name: they stand in the environment.
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
    """What :func:`parse` makes of a name."""

    url: str
    """For SQLAlchemy, with ``${NAME}`` where a secret of the environment stands."""
    key: str
    """The column that the rows are ordered and found by."""
    table: str = ""
    """``name`` or ``schema.name``; empty: there is a query."""
    query: str = ""
    last: str = ""
    """The greatest key that counts; empty: the greatest there is."""
    keys: str = ""
    """Digest of all keys; empty: any."""

    def __str__(self) -> str:
        parts = {name: getattr(self, name) for name in _PARTS}
        text = urlencode({name: value for name, value in parts.items() if value}, safe="/:")
        return f"{self.url}#{text}" + (f"&query={self.query}" if self.query else "")


def parse(text: str) -> SqlName:
    """A name as the user, or a source, wrote it; the database is not asked.

    Raises:
        UsageError: a part is missing, unknown or not possible, or there is a password in it. The
            message shows no password.
    """
    url, _, fragment = text.partition("#")
    shown = _checked_url(url)
    fragment, found, query = fragment.partition("query=")
    if found and fragment and not fragment.endswith("&"):  # a part that ends in "query"
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
    """The ``sqlalchemy.URL`` to connect with, and the secrets in it, which no message may show.

    Raises:
        UsageError: a variable of the environment is not set.
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
    """The name of the rows up to the key ``last``, whose keys have the digest ``keys``."""
    return replace(name, last=last, keys=keys)


def _url(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        # The text of the error would show what may be a password.
        raise UsageError(f"{text.partition(':')[0]}://...: not an URL; {_EXAMPLE}") from None


def _checked_url(text: str) -> str:
    """The URL as it may be shown."""
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
    """Whether the database is a file, by its path."""
    named = str(url.database).startswith("file:")  # an URL of SQLite's own
    return url.get_backend_name() in ("sqlite", "duckdb") and not named


def _absolute(text: str) -> str:
    """The URL with an absolute path, where it names a file: processes have other folders."""
    url = _url(text)
    if not is_file(url):
        return text
    path = os.path.abspath(os.path.expanduser(str(url.database)))
    return str(url.set(database=path).render_as_string(hide_password=False))
