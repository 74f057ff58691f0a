"""Calls of parameter servers, and of clients that look for them. Pure."""

from __future__ import annotations

from dataclasses import replace

from master.state.job.job import ManagedJob
from master.state.work.progress import without_lost
from master.state.workforce.processes import ServerProcess
from torch_edl.errors import UsageError
from torch_edl.events import (
    RecordsLacked,
    ServerAccepts,
    ServerLeaves,
    ServerRejects,
    ServersReady,
    UpdatesLost,
)
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb

# Seconds for which servers send the most frequent ids after a client has asked for them.
_ASKED_S = 10.0


def register(
    job: ManagedJob, request: pb.RegisterServerRequest, now: float
) -> pb.RegisterServerResponse:
    """Register a server that listens; UsageError if another one has its shard."""
    shard = request.shard
    before = job.fleet.cluster()
    process = job.fleet.servers.registered(shard, request.incarnation, request.address, now)
    if process is None:
        raise UsageError(
            f"server of shard {shard}, incarnation {request.incarnation}: not a server that "
            "this job waits for"
        )
    process.data_plane = request.data_plane
    if request.lost:
        job.apply_all(job.failover.not_restored(process, request.lost), now)
        return pb.RegisterServerResponse()
    if request.HasField("watermarks") and not request.updates_lost:
        _take_back(job, process, Watermarks.from_proto(request.watermarks), now)
    if before is None:
        _note_ready(job, now)
    lost = job.fleet.servers.lacks(shard, request.updates_lost)
    if lost:
        job.lifecycle.updates_lost += lost
        event = UpdatesLost(process=process.name, shard=shard, updates=lost, damage=request.damage)
        job.lifecycle.note(event, now)
    return pb.RegisterServerResponse()


def _take_back(job: ManagedJob, server: ServerProcess, marks: Watermarks, now: float) -> None:
    """Return records to the queue that a server acknowledged and lost, because its machine lost
    power before they were on the disk."""
    main = job.tasks.main
    if main is None or not job.config.trains or job.checkpoints.final is not None:
        return
    kept, lacks = without_lost(main.space, main.progress(), marks)
    if not lacks:
        return
    event = RecordsLacked(
        process=server.name, shard=server.shard, records=lacks, trained_again=True
    )
    workers = [job.fleet.worker(member.id) for member in job.members]
    if any(worker is None or worker.ready for worker in workers):
        # Their pushes may retire the tasks of these records.
        job.tasks.ledger.add("lost", server.shard, lacks)
        job.lifecycle.note(replace(event, trained_again=False), now)
        return
    job.lifecycle.rolled_back(job.done()[0])
    main.restore(kept)
    job.milestones.restored()
    job.lifecycle.note(event, now)


def _note_ready(job: ManagedJob, now: float) -> None:
    cluster = job.fleet.cluster()
    if cluster is not None:
        job.lifecycle.note(ServersReady(count=len(cluster.servers)), now)


def heartbeat(
    job: ManagedJob, request: pb.ServerHeartbeatRequest, now: float
) -> pb.ServerHeartbeatResponse:
    process = job.fleet.servers.heard(request.shard, request.incarnation, now)
    if process is None:
        # A server that ends with the job was not replaced, although its process may take a
        # while to exit.
        over = job.lifecycle.outcome is not None
        known = over and job.fleet.servers.has(request.shard, request.incarnation)
        return pb.ServerHeartbeatResponse(known=known)
    process.keeper = request.keeper
    job.fleet.servers.loads[request.shard] = request
    if process.problem != request.problem:
        process.problem = request.problem
        if request.problem:
            rejects = ServerRejects(process=process.name, problem=request.problem)
            job.lifecycle.note(rejects, now)
        else:
            job.lifecycle.note(ServerAccepts(process=process.name), now)
    stay = request.leaving and _stays(job, process, now, request.notice)
    peer = job.fleet.servers.peer(request.shard)
    number = request.note
    known = number > 0 and job.fleet.servers.note(process, number, request.has_copy)
    noted = number if known else 0
    tell = ("ps", process.id) in job.verdicts
    return pb.ServerHeartbeatResponse(
        known=True,
        peer=peer,
        stay=stay,
        noted=noted,
        tell_machine=tell,
        tell_frequent_ids=now - job.fleet.servers.ids_asked_at < _ASKED_S,
    )


def _stays(job: ManagedJob, server: ServerProcess, now: float, notice: str) -> bool:
    """Return whether a server that received SIGTERM, or a notice of preemption, stays until the
    model has moved, or other servers have copies: its shard would be lost with it."""
    mode, servers = job.config.durability.mode, job.fleet.servers
    leaves = ServerLeaves(process=server.name, notice=notice, then="shard")
    if mode == "replica":
        server.released |= job.lifecycle.outcome is not None or servers.is_expendable(server)
        if server.released:
            return False
        begins, server.leaving = not server.leaving, True
        leaves = replace(leaves, then="copies")
    else:
        shard_stays = mode == "journal" or not job.config.shares_files
        if shard_stays and notice and not server.leaving:
            server.leaving = True
            job.lifecycle.note(leaves, now)
        if shard_stays or job.lifecycle.ending or not job.config.trains or job.tasks.trained:
            return False
        begins, servers.moving = not servers.moving, True
        leaves = replace(leaves, then="move")
    if begins:
        job.lifecycle.note(leaves, now)
    return True


def get_cluster(
    job: ManagedJob, request: pb.GetClusterRequest, now: float
) -> pb.GetClusterResponse | None:
    """Answer once the caller's server is superseded, or the job is over."""
    if job.lifecycle.outcome is not None or job.fleet.strategy != "ps":
        return pb.GetClusterResponse()
    if not job.fleet.servers.is_superseded(request.shard, request.after):
        return None
    return cluster_now(job)


def cluster_now(job: ManagedJob) -> pb.GetClusterResponse:
    """Return the answer to a call that saw no change for a while."""
    return pb.GetClusterResponse(cluster=job.fleet.cluster(starting=True))
