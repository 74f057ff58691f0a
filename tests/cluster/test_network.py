"""The network of the cluster, without its API server."""

from __future__ import annotations

import subprocess
import sys

from tests.cluster.cluster import ROOT
from tests.waiting import HANG_S

_POD_AFTER_PODS = """
import json, subprocess
from tests.cluster.network import PodNetwork, enter_cluster

def address():
    links = json.loads(subprocess.check_output(["ip", "-json", "link", "show", "cluster"]))
    return links[0]["address"]

enter_cluster()
seen = {address()}
pods = []
for _ in range(6):
    pods.append(PodNetwork())
    seen.add(address())
print(*seen)
"""


def test_pods_that_come_and_go_do_not_move_the_api_server(machine: None) -> None:
    """A pod that knows where to send to goes on to send there."""
    found = subprocess.run(
        [sys.executable, "-c", _POD_AFTER_PODS], cwd=ROOT, text=True, check=True, timeout=HANG_S,
        capture_output=True,
    )  # fmt: skip
    assert len(found.stdout.split()) == 1, found.stdout
