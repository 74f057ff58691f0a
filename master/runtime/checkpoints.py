"""Takes checkpoints: the Hold and Snapshot protocol over servers, and the manifest at its end."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from master.state.saves import Contents, Saved
from master.state.tasks import TaskQueue
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.manifest import Manifest
from torch_edl.data.task_space import TaskSpace
from torch_edl.errors import CheckpointError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire.channel import Stub

log = logging.getLogger(__name__)

_HOLD_MS = 10_000
_CALL_S = 20.0
_WRITE_S = 1800.0


def save_servers(
    addresses: Sequence[str],
    *,
    token: str,
    incarnation: int,
    root: Path,
    known: Watermarks,
    contents: Contents,
) -> Saved:
    """A checkpoint of all servers, at one cut through all their updates.

    Args:
        known: tasks known to be done before this began.

    Raises:
        CheckpointError: a server does not answer, is not initialised, or could not write.
        OSError: the disk refused.
    """
    fence = ps.Fence(job=contents.job, incarnation=incarnation)
    with _stubs(addresses, token) as stubs:
        try:
            held = _all(stubs, "Hold", ps.HoldRequest(fence=fence, timeout_ms=_HOLD_MS), _CALL_S)
            if not all(answer.initialized for answer in held):
                raise CheckpointError("the servers have no model yet")
            targets = Watermarks.union(Watermarks.from_proto(answer.watermarks) for answer in held)
            progress = Watermarks.union([known, targets])
            steps = steps_of(contents.space, progress)
            directory = layout.step_dir(root, steps)
            if (directory / layout.MANIFEST).exists():
                _release(stubs, fence)
                return Saved(directory, layout.read(directory))
            _make_empty(directory)
        except BaseException:
            _release(stubs, fence)
            raise
        try:
            request = ps.SnapshotRequest(
                # Also what is known to be done: in sync mode the last pushes of a task may wait for
                # their quorum, and a manifest that calls it done must come with them.
                fence=fence,
                targets=progress.to_proto(),
                directory=str(directory),
            )
            written = _all(stubs, "Snapshot", request, _WRITE_S)
            manifest = Manifest(
                job=contents.job,
                strategy=contents.strategy,
                steps=steps,
                shards=len(stubs),
                retired_before=progress.retired_before,
                watermarks=dict(progress.offsets),
                files={
                    name: size
                    for answer in written
                    for name, size in zip(answer.files, answer.sizes, strict=True)
                },
                versions=tuple(answer.version for answer in written),
                data=dict(contents.data),
            )
            layout.commit(directory, manifest)
        except BaseException:
            _release(stubs, fence)
            shutil.rmtree(directory, ignore_errors=True)
            raise
    log.info("checkpoint %s, pushes waited %.1f ms", directory, max(a.stall_ms for a in written))
    return Saved(directory, manifest)


def commit_local(
    directory: Path,
    files: Mapping[str, int],
    *,
    version: int,
    progress: Watermarks,
    contents: Contents,
    root: Path,
) -> Saved:
    """A checkpoint of what the worker of the strategy ``local`` wrote to ``directory``.

    Raises:
        CheckpointError: a file is missing or cut.
        OSError: the disk refused.
    """
    steps = steps_of(contents.space, progress)
    target = layout.step_dir(root, steps)
    if (target / layout.MANIFEST).exists():
        shutil.rmtree(directory, ignore_errors=True)
        return Saved(target, layout.read(target))
    try:
        shutil.rmtree(target, ignore_errors=True)
        os.rename(directory, target)
        manifest = Manifest(
            job=contents.job,
            strategy=contents.strategy,
            steps=steps,
            shards=1,
            retired_before=progress.retired_before,
            watermarks=dict(progress.offsets),
            files=dict(files),
            versions=(version,),
            data=dict(contents.data),
        )
        layout.commit(target, manifest)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        raise
    return Saved(target, manifest)


def flush(addresses: Sequence[str], *, token: str, job: str, incarnation: int) -> None:
    """Has every server apply what waits for its quorum.

    Raises:
        CheckpointError: one did not.
    """
    request = ps.FlushRequest(fence=ps.Fence(job=job, incarnation=incarnation))
    with _stubs(addresses, token) as stubs:
        _all(stubs, "Flush", request, _CALL_S)


def steps_of(space: TaskSpace, progress: Watermarks) -> int:
    """Minibatches in ``progress``."""
    queue = TaskQueue(space, lease_ids=iter(()))
    queue.restore(progress)
    return queue.steps_done


def remove_leftovers(root: Path) -> None:
    """Removes what a job that was killed left half-written, and makes the folder.

    Raises:
        OSError: it cannot be made or written.
    """
    root.mkdir(parents=True, exist_ok=True)
    for path in root.glob(".snapshot-*"):
        shutil.rmtree(path, ignore_errors=True)


def _make_empty(directory: Path) -> None:
    if directory.exists():
        # The manifest goes first: a folder that is being removed is no checkpoint.
        (directory / layout.MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(directory)
    directory.mkdir(parents=True)


@contextlib.contextmanager
def _stubs(addresses: Sequence[str], token: str) -> Iterator[list[Stub]]:
    service = ps.DESCRIPTOR.services_by_name["Pserver"]
    stubs = [Stub(service, address, token) for address in addresses]
    try:
        yield stubs
    finally:
        for stub in stubs:
            stub.close()


def _all(stubs: Sequence[Stub], method: str, request: Any, timeout_s: float) -> list[Any]:
    """Calls every server at once and waits for all answers."""
    calls = [stub.start(method, request, timeout_s=timeout_s) for stub in stubs]
    answers, errors = [], []
    for shard, call in enumerate(calls):
        try:
            answers.append(call.result())
        except grpc.RpcError as error:
            errors.append(f"{method} on the server of shard {shard}: {error.details()}")
    if errors:
        raise CheckpointError("; ".join(errors))
    return answers


def _release(stubs: Sequence[Stub], fence: ps.Fence) -> None:
    with contextlib.suppress(CheckpointError):
        _all(stubs, "Release", ps.ReleaseRequest(fence=fence), _CALL_S)
