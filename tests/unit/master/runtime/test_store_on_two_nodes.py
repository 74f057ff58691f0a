"""The file of a store on a volume that two nodes mount: they share the file, and no memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from master.runtime.store import SqliteStore
from tests.cluster.conftest import require_networks
from tests.waiting import HANG_S

_COUNT = 30
# Each process sees a file of its own in place of the shared memory of sqlite's write-ahead log, as
# two nodes do that mount one network file system.
_NODE = """
import sys
from tests.cluster import linux

database, own, count = sys.argv[1:]
linux.unshare_as_root(linux.NEW_MOUNTS)
linux.mount("none", "/", flags=linux.RECURSIVE | linux.PRIVATE)
linux.mount(own, f"{database}-shm", flags=linux.BIND)

from master.runtime.store import SqliteStore
from torch_edl.errors import StoreConflictError

store = SqliteStore(database)
print("ready", flush=True)
sys.stdin.readline()
done = 0
while done < int(count):
    entry = store.get("n")
    try:
        store.commit({"n": str(int(entry.value) + 1).encode()}, {"n": entry.revision})
        done += 1
    except StoreConflictError:
        pass
"""


def test_two_masters_that_share_no_memory_lose_no_write(tmp_path: Path) -> None:
    require_networks()
    database = tmp_path / "state.sqlite"
    store = SqliteStore(database)
    store.commit({"n": b"0"}, {})
    store.close()
    (tmp_path / "state.sqlite-shm").touch()
    nodes = []
    for name in ("a", "b"):
        (tmp_path / name).touch()
        nodes.append(
            subprocess.Popen(
                [sys.executable, "-c", _NODE, database, tmp_path / name, str(_COUNT)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    try:
        assert [node.stdout.readline() for node in nodes if node.stdout] == ["ready\n"] * 2
        for node in nodes:
            assert node.stdin is not None
            node.stdin.write("go\n")
            node.stdin.flush()
        for node in nodes:
            _, said = node.communicate(timeout=HANG_S)
            assert node.returncode == 0, said
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    store = SqliteStore(database)
    found = store.get("n")
    store.close()
    assert found is not None
    assert int(found.value) == 2 * _COUNT
