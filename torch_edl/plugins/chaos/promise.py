"""What the configuration of a job promises to survive, and what a plan costs otherwise. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from torch_edl.config import JobConfig
from torch_edl.plugins.chaos.plan import StormPlan
from torch_edl.wire import master_pb2 as pb


def risks(plan: StormPlan, config: JobConfig, status: pb.GetStatusResponse) -> Sequence[str]:
    """Return what the plan will cost, one sentence per risk; empty if no progress can be lost."""
    found = []
    killed = plan.roles(killed=True)
    everything = killed | plan.roles(killed=False)
    newest = f"a checkpoint ({status.checkpoint} or newer)"
    point = newest if status.checkpoint else "the beginning, or from the first checkpoint"
    if "ps" in killed and config.durability.mode == "checkpoint":
        found.append(
            "--durability checkpoint: each kill of a server restores all servers from "
            f"{point}, and later records are trained again; --durability journal loses "
            "nothing"
        )
    if "worker" in killed and status.strategy == "local":
        found.append(
            "--strategy local: the one worker holds the model; each kill restores it from "
            f"{point}, and later records are trained again"
        )
    workers = sum(p.role == "worker" and p.state != "exited" for p in status.processes)
    if status.strategy == "allreduce" and everything.get("worker", -1) >= workers:
        found.append(
            f"--strategy allreduce: the workers hold the model; if all {workers} die together, "
            f"training continues from {point}"
        )
    return found


def restraint(plan: StormPlan, config: JobConfig) -> str:
    """Return which faults wait until the job can survive them, as a sentence; empty if none
    does."""
    if config.durability.mode != "replica":
        return ""
    if not (plan.roles(killed=True) | plan.roles(killed=False)).get("ps"):
        return ""
    return (
        "--durability replica: a server and the one with its copy must not die together; a server "
        "is struck only while no other server needs it"
    )
