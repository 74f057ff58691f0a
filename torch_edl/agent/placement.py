"""Where a worker is in its job, and the variables by which torchrun tells it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch.distributed.launcher.api import LaunchConfig

from torch_edl.wire import master_pb2 as pb


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where this agent's workers are in the job when they are started.

    The variables of a process cannot change while it runs. A script that uses torch_edl asks the
    job for its present rank instead.
    """

    node_rank: int
    nodes: int
    master_addr: str
    master_port: int

    @classmethod
    def told(
        cls, response: pb.AgentReportResponse, config: LaunchConfig, *, before: Placement | None
    ) -> Placement:
        """The placement that an answer of the master gives.

        Args:
            before: the placement of the workers so far; the rank of the machine stays.
        """
        return cls(
            node_rank=response.node_rank if before is None else before.node_rank,
            # With a fixed number of machines all count, also while one of them is replaced.
            nodes=min(max(config.min_nodes, response.nodes), config.max_nodes),
            master_addr=response.master_addr,
            master_port=response.master_port,
        )


def worker_environment(
    config: LaunchConfig, placement: Placement, local_rank: int, *, attempt: int
) -> dict[str, str]:
    """The variables that torchrun sets, as torch's LocalElasticAgent does.

    Raises:
        ValueError: --virtual-local-rank, and CUDA_VISIBLE_DEVICES names fewer devices.
    """
    rank = placement.node_rank * config.nproc_per_node + local_rank
    world_size = max(placement.nodes * config.nproc_per_node, rank + 1)
    env = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(placement.node_rank),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": config.role,
        "LOCAL_WORLD_SIZE": str(config.nproc_per_node),
        "WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": str(placement.nodes),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": placement.master_addr,
        "MASTER_PORT": str(placement.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_RUN_ID": config.run_id,
        # Rank 0 of a group that the script makes itself serves the store of it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if config.virtual_local_rank:
        env["LOCAL_RANK"] = "0"
        env["CUDA_VISIBLE_DEVICES"] = _device(local_rank)
    return env


def _device(local_rank: int) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(local_rank)
    devices = [device.strip() for device in visible.split(",")]
    if local_rank >= len(devices):
        raise ValueError(
            f"CUDA_VISIBLE_DEVICES={visible}: no device for local rank {local_rank}; "
            "name one for each worker"
        )
    return devices[local_rank]
