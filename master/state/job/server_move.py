"""The move of a model to other servers, while it trains. Pure.

The servers of today are sealed at one cut through all their updates: they acknowledge no push after
it, so every push that they ever acknowledged is in the cut. The servers of tomorrow restore the
cut, and the tasks continue from its watermarks: nothing is rolled back.

A move that has begun is carried through, whatever fails in between, since a server may be sealed
from then on. Where a server dies meanwhile, its loss is what it always is; a cut of other servers
than those of now is void.
"""

from __future__ import annotations

from master.state.actions import Remove
from master.state.job.checkpoint_manager import CheckpointManager, CutTaken
from master.state.job.milestones import MoveBegun
from master.state.lifecycle import Lifecycle
from master.state.membership import Membership
from master.state.work.task_scheduler import TaskScheduler
from master.state.workforce.fleet import Fleet
from master.state.workforce.processes import Process
from torch_edl.config import JobConfig
from torch_edl.config.scaling import check_servers


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
        self._oldest = 1  # incarnation of the model whose journals may be there

    @property
    def due(self) -> bool:
        """The model is to move as soon as there is nothing else to wait for."""
        return self._fleet.strategy == "ps" and self._fleet.servers.moves

    def require(self, servers: int) -> None:
        """Raises UsageError if the job cannot have so many servers."""
        check_servers(self._config, servers, strategy=self._fleet.strategy)

    def scale(self, servers: int) -> None:
        """The job is to have so many servers."""
        self._fleet.servers.want(servers)

    def leave(self, server: Process, now: float) -> bool:
        """A server got SIGTERM; returns whether it is to serve on until the model has moved, or
        others have copies, since its part would be lost with it."""
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

    def _stays_for_copies(self, server: Process, now: float) -> bool:
        if self._lifecycle.outcome is not None or self._fleet.servers.is_expendable(server):
            server.released = True
        elif not server.leaving:
            server.leaving = True
            text = f"ps-{server.id} was asked to leave (SIGTERM): it waits for copies on others"
            self._lifecycle.note("info", text, now)
        return not server.released

    def apply(self, event: MoveBegun | CutTaken, now: float) -> None:
        """The servers are about to be sealed, or are: the move is to be carried through."""
        if isinstance(event, CutTaken):
            self._take_over(event, now)
        else:
            self._fleet.servers.moving = True

    def tidy(self) -> list[Remove]:
        """Removes the journals of earlier incarnations of the model once all servers of this one
        listen, and those that wrote them have ended."""
        fleet = self._fleet
        servers = fleet.alive("ps")
        if fleet.cluster() is None or any(process not in fleet.servers for process in servers):
            return []
        old, self._oldest = range(self._oldest, fleet.incarnation), fleet.incarnation
        folders = [fleet.server_command.journals_of(model) for model in old]
        return [Remove(folder) for folder in folders if folder is not None]

    def _take_over(self, cut: CutTaken, now: float) -> None:
        """The cut is complete: new servers restore it, unless the cut is void, and another one
        follows, or the job ends, for which the old servers have all that it needs."""
        servers = self._fleet.servers
        void = tuple(server.incarnation for server in servers.now()) != cut.servers
        if void or self._lifecycle.ending:
            return
        before = servers.shards
        self._tasks.void()
        self._fleet.renew(restore=str(cut.saved.path))
        self._members.forget_open_work()
        self._checkpoints.moved(cut.saved, self._fleet.incarnation)
        text = f"the model moves from {before} to {servers.shards} parameter servers"
        self._lifecycle.note("info", f"{text}; nothing is rolled back", now)
