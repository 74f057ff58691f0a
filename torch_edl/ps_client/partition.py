"""Which server holds what: rows by hash of their id (``_core.owner``), dense parameters by size."""

from __future__ import annotations

from collections.abc import Mapping


def dense_owners(sizes: Mapping[str, int], shards: int) -> dict[str, int]:
    """Spreads dense parameters, each whole, so that the fullest server is little above the mean.

    The largest goes first, each to the server that has least so far (Graham 1969: at most 4/3 of
    the best). Equal input gives equal output, whatever its order, so that every worker sees the
    same partition without asking.

    Args:
        sizes: name to size, in any one unit.
        shards: number of servers.

    Returns:
        Name to server in ``[0, shards)``.
    """
    assert shards >= 1, shards
    load = [0] * shards
    owners = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        server = min(range(shards), key=load.__getitem__)
        owners[name] = server
        load[server] += sizes[name]
    return owners
