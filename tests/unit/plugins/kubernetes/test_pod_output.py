"""Which process has written a line of a pod's log."""

from __future__ import annotations

from torch_edl.plugins.kubernetes.client.logs import by_process
from torch_edl.plugins.kubernetes.cluster.pod_state import PodState


def test_a_line_of_a_shared_pod_begins_with_its_worker() -> None:
    alone = PodState(name="p", uid="u", role="worker", id=3)
    shared = PodState(name="p", uid="u", role="worker", id=3, shared=True)
    line = b"worker-4: worker-5: loss 0.1"
    assert by_process(alone, line) == ("worker-3", line)
    assert by_process(shared, line) == ("worker-4", b"worker-5: loss 0.1")
    for own in (b"12:00:00.000 pod-3 ERROR gone", b"worker-x: a"):
        assert by_process(shared, own) == ("worker-3", own)
