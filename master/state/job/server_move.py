"""The move of a model to other servers during training. Pure.

The old servers are sealed at one cut through all their updates and acknowledge no push after it, so
the cut contains every acknowledged push. The new servers restore the cut, and the tasks continue
from its watermarks: nothing is rolled back.

A move that has begun is completed even after failures, since a server may be sealed already. The
loss of a server during a move is handled as at any other time. A cut is void if a server was
replaced meanwhile.
"""

from __future__ import annotations

from master.state.actions import Remove
from master.state.job.checkpoint_manager import CheckpointManager, CutTaken
from master.state.lifecycle import Lifecycle
from master.state.membership import Membership
from master.state.work.task_scheduler import TaskScheduler
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import ServerProcess
from torch_edl.config import JobConfig


class ServerMove:
    """Moves the model of a job to another number of servers, or to new ones."""

    def __init__(
        self,
        config: JobConfig,
        fleet: Fleet,
        lifecycle: Lifecycle,
        tasks: TaskScheduler,
        members: Membership,
        checkpoints: CheckpointManager,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._lifecycle = lifecycle
        self._tasks = tasks
        self._members = members
        self._checkpoints = checkpoints
        self._oldest = 1  # oldest model incarnation with journals

    def leave(self, server: ServerProcess, now: float) -> bool:
        """Handle the SIGTERM of a server. Returns whether the server stays until the model has
        moved or other servers have copies, since its shard would be lost with it."""
        mode = self._config.durability.mode
        if mode == "replica":
            return self._stays_for_copies(server, now)
        stays = mode == "journal" or not self._config.shares_files
        if stays or self._lifecycle.ending or not self._config.trains or self._tasks.trained:
            return False
        servers = self._fleet.servers
        if not servers.moving:
            servers.moving = True
            text = f"ps-{server.id} was asked to leave (SIGTERM): the model moves to other servers"
            self._lifecycle.note("info", text, now)
        return True

    def _stays_for_copies(self, server: ServerProcess, now: float) -> bool:
        if self._lifecycle.outcome is not None or self._fleet.servers.is_expendable(server):
            server.released = True
        elif not server.leaving:
            server.leaving = True
            text = f"ps-{server.id} was asked to leave (SIGTERM): it waits for copies on others"
            self._lifecycle.note("info", text, now)
        return not server.released

    def tidy(self) -> list[Remove]:
        """Remove the journals of earlier incarnations of the model, once all new servers listen and
        the servers that wrote the journals have ended."""
        fleet = self._fleet
        servers = fleet.alive("ps")
        if fleet.cluster() is None or any(process not in fleet.servers for process in servers):
            return []
        old, self._oldest = range(self._oldest, fleet.model.incarnation), fleet.model.incarnation
        folders = [fleet.server_command.journals_of(model) for model in old]
        return [Remove(folder) for folder in folders if folder is not None]

    def take_over(self, cut: CutTaken, now: float) -> None:
        """Start new servers that restore the cut. A void cut is ignored: another one follows. A job
        that is ending keeps its old servers."""
        servers = self._fleet.servers
        void = tuple(server.incarnation for server in servers.now()) != cut.servers
        if void or self._lifecycle.ending:
            return
        before = servers.shards
        self._tasks.void()
        self._fleet.renew(restore=str(cut.saved.path))
        self._members.forget_open_work()
        self._checkpoints.moved(cut.saved, self._fleet.model.incarnation)
        text = f"the model moves from {before} to {servers.shards} parameter servers"
        self._lifecycle.note("info", f"{text}; nothing is rolled back", now)
