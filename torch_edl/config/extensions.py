"""Plugins: objects that installed packages offer under entry points, found by group and name."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from torch_edl.errors import UsageError

SOURCES = "torch_edl.sources"
"""Kinds of data; see :class:`torch_edl.interfaces.Source`."""
COMMANDS = "torch_edl.commands"
"""Verbs of the command line; see :mod:`torch_edl.interfaces`."""
BACKENDS = "torch_edl.backends"
"""Frameworks of model files; see :class:`torch_edl.interfaces.Backend`."""
OBSERVERS = "torch_edl.observers"
"""Receivers of events and metrics; see :class:`torch_edl.interfaces.Observer`."""
EXPORTERS = "torch_edl.exporters"
"""Servers of the numbers of a job; see :class:`torch_edl.interfaces.Exporter`."""
PLATFORMS = "torch_edl.platforms"
"""Places where jobs run; see :class:`torch_edl.interfaces.platform.Platform`."""
MAGIC = "torch_edl.magic"
"""Recognition of formats; see :mod:`torch_edl.interfaces`."""
PREPROCESSING = "torch_edl.preprocessing"
"""Kinds of preprocessing; see :class:`torch_edl.interfaces.Fittable`."""
STORAGES = "torch_edl.storages"
"""Stores of files; see :class:`torch_edl.interfaces.Storage`."""
TRACERS = "torch_edl.tracers"
"""Senders of spans of steps for ``--trace``; see ``docs/extending.md``."""
WATCHES = "torch_edl.watches"
"""Judges of the processes of a job; see :class:`torch_edl.interfaces.watch.Watch`."""
STORES = "torch_edl.stores"
"""Stores of the master's state; see :class:`torch_edl.interfaces.Store`."""


def installed(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name. The first one wins where two packages have one name."""
    return by_group().get(group, {})


@functools.cache
def by_group() -> dict[str, dict[str, EntryPoint]]:
    """Return the entry points of all groups. The metadata of all installed packages is read once
    for a process, which takes 15 ms with 200 packages."""
    read = entry_points()
    found: dict[str, dict[str, EntryPoint]] = {group: {} for group in read.groups}
    for group, points in found.items():
        for each in read.select(group=group):
            points.setdefault(each.name, each)
    return found


def extras_of(group: str, name: str) -> set[str]:
    """The extras of torch-edl that a plugin needs; empty: none, or there is no such plugin."""
    found = installed(group).get(name)
    return set(found.extras) if found is not None else set()


def load(group: str, name: str, what: str) -> Any:
    """Import the object of an entry point.

    Args:
        what: what the user wrote, for the message of an error.

    Raises:
        UsageError: no installed package offers the name, or a library that it needs is missing.
    """
    found = installed(group).get(name)
    if found is None:
        known = ", ".join(sorted(installed(group))) or "none"
        raise UsageError(f"{what}: no installed package offers {name!r}; installed are {known}")
    try:
        return found.load()
    except ImportError as error:
        extra = ", ".join(found.extras)
        fix = f"install what reads it: pip install 'torch-edl[{extra}]'" if extra else str(found)
        raise UsageError(f"{what}: {error}; {fix}") from error


def platform(name: str) -> Any:
    """Return the :class:`~torch_edl.interfaces.Platform` of an installed package.

    Raises:
        UsageError: no installed package offers the platform.
    """
    return load(PLATFORMS, name, f"--platform {name}")


def platforms() -> dict[str, Any]:
    """Return the platforms of all installed packages by name."""
    return {name: platform(name) for name in sorted(installed(PLATFORMS))}
