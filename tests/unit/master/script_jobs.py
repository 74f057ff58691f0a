"""Jobs of training scripts, at the points where tests begin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.master.world import World
from torch_edl.config import Launch
from torch_edl.wire import master_pb2 as pb

UNBOUND = pb.EmbeddingReport(name="rows", dim=4, dynamic=True)
SMALL = pb.EmbeddingReport(name="rows", num_embeddings=10, dim=4)


LAUNCH = Launch(per_node=2, grace_s=20.0)


def script(**options: Any) -> World:
    """Return the job of a script in a ring under torchrun, of two workers at most."""
    return World(**{"kind": "script", "strategy": "allreduce", "workers": 2, **options})


def on_nodes(*, max_restarts: int = 0, **options: Any) -> World:
    """Return the job of a script whose workers 0 and 1 a node has started."""
    return script(launch=replace(LAUNCH, max_restarts=max_restarts), **options)


def torchrun() -> World:
    """Return a script whose workers 0 and 1 train in a ring under torchrun."""
    w = script()
    for rank in (0, 1):
        w.register(11 + rank, local_rank=rank)
    w.ring(0, 1)
    return w


def ring_of_two(**options: Any) -> World:
    """Return a script whose workers 0 and 1, on a node, train in a ring."""
    w = on_nodes(**options)
    for worker in (0, 1):
        w.enter(worker)
    w.ring(0, 1)
    return w


def on_servers(**options: Any) -> World:
    """Return the job of a script on servers and a node, in which worker 0 knows its data."""
    w = on_nodes(strategy="ps", **options)
    w.servers_up()
    assert w.enter(0)
    assert w.report_model(0, UNBOUND)
    assert w.report_data(0)
    return w
