"""``--durability replica`` in one server: the log of its shard at a peer, the copy of another
shard, and the folder that both use."""

from __future__ import annotations

from torch_edl.ps_server.durability.identity import JournalIdentity
from torch_edl.ps_server.durability.peer.keeper import ReplicaKeeper
from torch_edl.ps_server.durability.peer.peer import Peer
from torch_edl.ps_server.scratch import Scratch


class ShardReplica:
    """The log, the keeper of the copy, and their folder.

    Args:
        incarnation: incarnation of this server.
        token: token of the job.
    """

    def __init__(
        self, identity: JournalIdentity, incarnation: int, token: str, *, is_successor: bool
    ) -> None:
        self._scratch = Scratch(f"{identity.job}-shard-{identity.shard}")
        own, other = self._scratch.path / "own", self._scratch.path / "peer"
        own.mkdir()
        other.mkdir()
        self.peer = Peer(identity, incarnation, token=token, folder=own, is_successor=is_successor)
        self.keeper = ReplicaKeeper(other, identity.job, identity.shard, identity.shards)

    def close(self) -> None:
        """Close the log and remove the copy of the other shard: this process ends."""
        self.peer.close()
        self._scratch.close()
