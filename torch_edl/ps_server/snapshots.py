"""Snapshots of a shard in its log: written while pushes continue, when the log has grown, and read
by a successor.

``state.safetensors`` holds a ShardState, the other files what a checkpoint has of a shard.
"""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from torch_edl.checkpoint import tensor_files
from torch_edl.checkpoint.durable import sync
from torch_edl.checkpoint.reader import SavedTable, TableInfo
from torch_edl.errors import CheckpointError, JournalDamagedError, StaleIncarnationError, UsageError
from torch_edl.ps_server.durability.log import ChangeLog
from torch_edl.ps_server.shard import ModelShard
from torch_edl.tables.dense import DenseShard
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import EmbeddingTable
from torch_edl.wire import codec
from torch_edl.wire import shard_state_pb2 as pb

_log = logging.getLogger(__name__)

_LOADERS = 4  # parts of a table that are loaded in parallel
_STEM = "shard"
_STATE = "state.safetensors"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

LOG_BYTES = 512 << 20
"""Size below which a log is not replaced by a snapshot; half the size of the last snapshot is a
limit, too. A byte of log is replayed as fast as a byte of a snapshot is read, and a snapshot writes
the whole shard (to a peer, over the network). At 20 MB of pushes per second, a shard is written
every 26 s."""
_LOOK_S = 0.2
_RETRY_S = 10.0  # after a failed write
_PATIENCE = 3  # snapshots in a row that checkpoints may interrupt


def write(shard: ModelShard, log: ChangeLog, after_file: Callable[[], None] = lambda: None) -> int:
    """Make a snapshot the base of the log. Returns its size in bytes.

    Args:
        after_file: called after each file; an exception ends the snapshot.

    Raises:
        OSError: a write failed; the base is the old one.
        StaleIncarnationError: a later server has taken over the log.
    """

    def written(path: Path) -> None:
        if log.place.forces:
            sync(path)
        after_file()

    with log.place.new_base() as folder:
        sequence, state, begun = shard.freeze(log.rotate)
        sizes = tensor_files.write_shard(*begun, folder, _STEM, written, steadily=log.place.forces)
        state.files.update(sizes)
        content = np.frombuffer(state.SerializeToString(), np.uint8)
        size = tensor_files.write(folder / _STATE, {"state": content}, {})
        written(folder / _STATE)
        if log.place.forces:
            sync(folder)
        log.commit_snapshot(folder, sequence)
    return size + sum(sizes.values())


def load(shard: ModelShard, path: Path) -> None:
    """Restore the state of a base in a folder, in a shard that is not in use yet.

    Raises:
        JournalDamagedError: a file is damaged or missing; the message names it.
    """
    try:
        content = tensor_files.read(path / _STATE)["state"]
        state = pb.ShardState.FromString(content.tobytes())
        for name, size in state.files.items():
            if (path / name).stat().st_size != size:
                raise CheckpointError(f"{path / name}: not the {size} bytes that it had")
        optimizers = Optimizers.from_proto(state.dense.optimizer)
        for parameter in state.dense.parameters:
            value = parameter.value
            count = math.prod(dim.size for dim in value.tensor_shape.dim)
            value.tensor_content = bytes(count * np.dtype(codec.name_of(value.dtype)).itemsize)
        dense = DenseShard(state.dense.parameters, optimizers)
        dense.restore(tensor_files.read(path / f"{_STEM}.dense.safetensors"))
        tables = {}
        for index, saved in enumerate(state.tables):
            tables[saved.info.name] = _read_table(saved, optimizers, path, index, shard.shards)
        shard.thaw(state, dense, tables)
    except (CheckpointError, UsageError, OSError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:  # for a table on a disk
            raise
        raise JournalDamagedError(f"{path}: the snapshot is damaged: {error}") from error


def _read_table(
    saved: pb.SavedTable, optimizers: Optimizers, folder: Path, index: int, shards: int
) -> EmbeddingTable:
    table = EmbeddingTable(saved.info, saved.seed, optimizers, saved.declared, shards)
    parts, counts_parts = (
        sorted(folder.glob(f"{_STEM}.table-{index}.{kind}-*")) for kind in ("part", "counts")
    )

    begins = saved.info.initializer
    described: TableInfo = {
        "dim": saved.info.dim,
        "num_embeddings": saved.info.num_embeddings,
        "initializer": {"kind": begins.kind, "args": dict(begins.args)},
        "seed": saved.seed,
    }

    def load(parts: list[Path], counts_parts: list[Path]) -> None:
        on_disk = SavedTable(saved.info.name, described, parts, counts_parts)
        for _, counts in on_disk.counts():
            table.load_counts(counts)
        for _, rows in on_disk.rows():
            table.load(rows, table.slot_names)

    load([], counts_parts)
    loaders = 1 if table.on_disk else _LOADERS  # each has two parts in memory
    with ThreadPoolExecutor(loaders, thread_name_prefix="load") as pool:
        for _ in pool.map(lambda part: load([part], []), parts):
            pass
    table.resume_at(saved.step)
    return table


class _GivenUpError(Exception):
    """A checkpoint is due, or the server stops: the snapshot is abandoned."""


class Compactor:
    """A thread that takes snapshots while pushes continue.

    Args:
        is_held: returns whether a checkpoint holds pushes back; a checkpoint has priority.
    """

    def __init__(self, shard: ModelShard, log: ChangeLog, is_held: Callable[[], bool]) -> None:
        self._shard, self._target = shard, log
        self._is_held = is_held
        self.lock = threading.Lock()
        """Held while a snapshot or a checkpoint reads the tables: only one can at a time."""
        self._wanted = threading.Event()  # a checkpoint waits
        self._given_up = 0
        self._size = 0  # bytes of the last snapshot
        self._has_base = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; a snapshot in progress is abandoned."""
        self._closing.set()
        self._thread.join()

    def give_way(self, timeout_s: float) -> None:
        """Wait until no snapshot is in progress, before a checkpoint. A snapshot is abandoned,
        unless that has happened too often. The first one of a restored shard is awaited: the
        checkpoint that the shard was restored from may be removed once there is a newer one.

        Raises:
            TimeoutError: the first snapshot takes longer.
        """
        if self._needs_first():
            self._has_base.clear()
            if not self._has_base.wait(timeout_s):
                raise TimeoutError("the first snapshot of a restored server is under way")
        if self._given_up < _PATIENCE:
            self._wanted.set()
        with self.lock:
            self._wanted.clear()

    def _needs_first(self) -> bool:
        return self._shard.needs_source and self._target.base.path is None

    def _is_due(self) -> bool:
        if not self._shard.is_described or self._is_held():
            return False
        if self._needs_first() or self._target.place.needs_base:
            return True
        return self._target.bytes > max(LOG_BYTES, self._size // 2)

    def _check(self) -> None:
        if self._closing.is_set() or (self._wanted.is_set() and not self._needs_first()):
            raise _GivenUpError

    def _run(self) -> None:
        not_before = 0.0
        while not self._closing.wait(_LOOK_S):
            # A peer that needs a base is a new one: the failure of the old one does not count.
            waits = time.monotonic() < not_before and not self._target.place.needs_base
            if waits or not self._is_due():
                continue
            try:
                with self.lock:
                    self._size = write(self._shard, self._target, self._check)
                self._given_up = 0
                self._has_base.set()
            except _GivenUpError:
                self._given_up += 1
            except StaleIncarnationError:
                return
            except OSError as error:
                _log.warning("no snapshot of the log: %s; trying again later", error)
                not_before = time.monotonic() + _RETRY_S
