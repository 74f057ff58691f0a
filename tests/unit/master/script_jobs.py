"""Jobs of training scripts, at the points where tests begin."""

from __future__ import annotations

from typing import Any

from tests.unit.master.world import World
from torch_edl.wire import master_pb2 as pb

UNBOUND = pb.EmbeddingReport(name="rows", dim=4, dynamic=True)
SMALL = pb.EmbeddingReport(name="rows", num_embeddings=10, dim=4)


def died(pid: int, *, local_rank: int = 1, code: int = -9, **fields: Any) -> pb.AgentWorker:
    """Return an agent's report on a worker that ended."""
    return pb.AgentWorker(local_rank=local_rank, pid=pid, exited=True, code=code, **fields)


def script(**options: Any) -> World:
    """Return the job of a script in a ring, of two workers at most."""
    return World(**{"kind": "script", "strategy": "allreduce", "workers": 2, **options})


def torchrun() -> World:
    """Return a script whose workers 0 and 1 train in a ring, without any agent."""
    w = script()
    for rank in (0, 1):
        w.register(11 + rank, local_rank=rank)
    w.ring(0, 1)
    return w


def ring_of_two(**options: Any) -> World:
    """Return a script whose workers 0 and 1, of an agent, train in a ring."""
    w = script(**options)
    w.agent()
    w.register(11)
    w.register(12, local_rank=1)
    w.ring(0, 1)
    return w


def on_servers(**options: Any) -> World:
    """Return the job of a script on servers, with an agent, in which worker 0 knows its data."""
    w = script(strategy="ps", **options)
    w.agent("n", pb.AgentWorker(pid=1))
    w.servers_up()
    assert w.register(1) == 0
    assert w.report_model(0, UNBOUND)
    assert w.report_data(0)
    return w
