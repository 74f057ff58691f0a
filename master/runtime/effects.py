"""Executes the actions that take long, one after the other in a thread: checkpoints (of servers by
the Hold and Snapshot protocol, of a replica by moving it), and the output."""

from __future__ import annotations

import contextlib
import logging
import queue
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from master.state.actions import (
    CheckpointFailed,
    CheckpointSaved,
    CommitLocal,
    Effect,
    EffectEvent,
    Flush,
    Flushed,
    KeepPreprocessing,
    MergePredictions,
    OutputWritten,
    PreprocessingKept,
    Prune,
    Release,
    Remove,
    Saved,
    SaveServers,
    WriteOutput,
)
from master.state.work.tasks import steps_of
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.claim import Claim
from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.config.checkpoint import PREPROCESSING_FILE
from torch_edl.data.stream_space import saved_plan
from torch_edl.errors import CheckpointError, EdlError
from torch_edl.files import replacing
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

log = logging.getLogger(__name__)

_HOLD_MS = 10_000
_CALL_S = 20.0
_WRITE_S = 1800.0


class Effects:
    """A thread that executes actions.

    Args:
        apply: takes what came of each action.
        token: of the job, for the servers.
        preprocessing: the file of the fitted preprocessing, which is part of every checkpoint once
            it exists.
        claim: the folder of checkpoints, if the job has one.
    """

    def __init__(
        self,
        apply: Callable[[EffectEvent], None],
        *,
        token: str,
        preprocessing: Path | None = None,
        claim: Claim | None = None,
    ) -> None:
        self._apply = apply
        self._token = token
        self._preprocessing = preprocessing
        self._claim = claim
        self._queue: queue.SimpleQueue[Effect] = queue.SimpleQueue()
        # A daemon: a job that failed does not wait for a disk.
        threading.Thread(target=self._run, name="effects", daemon=True).start()

    def submit(self, effect: Effect) -> None:
        """Appends an action to those that are to be executed."""
        self._queue.put(effect)

    def _run(self) -> None:
        while True:
            effect = self._queue.get()
            event = execute(
                effect, token=self._token, preprocessing=self._preprocessing, claim=self._claim
            )
            if event is not None:
                self._apply(event)


def execute(
    effect: Effect, *, token: str, preprocessing: Path | None = None, claim: Claim | None = None
) -> EffectEvent | None:
    """Executes an action; returns what came of it, a failure too."""
    try:
        return _execute(effect, token, preprocessing, claim)
    except _NoModelError as error:
        assert isinstance(effect, SaveServers)
        return CheckpointFailed(str(error), effect.incarnation, early=True)
    except EdlError as error:
        text = str(error)
    except OSError as error:
        file = f": {error.filename}" if error.filename else ""
        text = f"{error.strerror or error}{file}"
    except Exception as error:
        log.exception("%s failed", type(effect).__name__)
        text = f"{type(error).__name__}: {error}"
    match effect:
        case SaveServers() | CommitLocal():
            return CheckpointFailed(text, effect.incarnation)
        case Flush():
            log.warning("flush: %s", text)
            return Flushed(effect.incarnation, success=False)
        case WriteOutput() | MergePredictions():
            return OutputWritten(error=text)
        case KeepPreprocessing():
            return PreprocessingKept(error=text)
    log.warning("%s", text)
    return None


def _execute(
    effect: Effect, token: str, preprocessing: Path | None, claim: Claim | None
) -> EffectEvent | None:
    match effect:
        case SaveServers():
            saved = save_servers(effect, token, preprocessing, claim)
            return CheckpointSaved(saved, effect.incarnation)
        case CommitLocal():
            return CheckpointSaved(commit_local(effect, preprocessing, claim), effect.incarnation)
        case Flush():
            flush(effect, token)
            return Flushed(effect.incarnation, success=True)
        case Release():
            with contextlib.closing(_Servers(effect.servers, effect.job, token)) as servers:
                servers.call(ps.ReleaseRequest(), _CALL_S)
        case WriteOutput():
            # Imported when needed: it brings the formats of files with it.
            from torch_edl.checkpoint.export import write_output

            write_output(effect.checkpoint, effect.output)
            return OutputWritten()
        case MergePredictions():
            from torch_edl.data.merge_predictions import merge

            effect.output.parent.mkdir(parents=True, exist_ok=True)
            merge(effect.parts, effect.output, tasks=effect.tasks)
            return OutputWritten()
        case Prune():
            layout.prune(effect.newest, effect.keep)
        case KeepPreprocessing():
            assert preprocessing is not None
            preprocessing.parent.mkdir(parents=True, exist_ok=True)
            with replacing(preprocessing) as file:
                file.write(effect.content)
            return PreprocessingKept()
        case Remove():
            shutil.rmtree(effect.directory, ignore_errors=True)
    return None


class _NoModelError(CheckpointError):
    """Workers have not told the servers yet what they hold."""


def _with_preprocessing(manifest: Manifest, directory: Path, file: Path | None) -> Manifest:
    """The manifest of a checkpoint of which the fitted preprocessing is a part, if there is any."""
    if file is None or not file.exists():
        return manifest
    copy = shutil.copyfile(file, directory / PREPROCESSING_FILE)
    return replace(manifest, files={**manifest.files, copy.name: copy.stat().st_size})


def save_servers(
    action: SaveServers,
    token: str,
    preprocessing: Path | None = None,
    claim: Claim | None = None,
) -> Saved:
    """A checkpoint of all servers, at one cut through all their updates.

    Args:
        preprocessing: a file that is to be part of it, if it exists.
        claim: the folder of checkpoints, if the job has one.

    Raises:
        CheckpointError: a server does not answer, is not initialised, or could not write.
        OSError: the disk is full or read-only.
    """
    called = _Servers(action.servers, action.manifest.job, token)
    move = action.move
    with contextlib.closing(called) as servers, _releasing(servers, move):
        held = servers.call(ps.HoldRequest(timeout_ms=_HOLD_MS, move=move), _CALL_S)
        if not all(answer.initialized for answer in held):
            raise _NoModelError("the servers have no model yet")
        applied = [Watermarks.from_proto(answer.watermarks) for answer in held]
        # Also the tasks that are known to be done: in sync mode the last pushes of a task may
        # wait for their quorum, and a manifest that calls the task done must come with them.
        progress = Watermarks.union([action.progress, *applied])
        steps = steps_of(action.space, progress)

        def write(directory: Path) -> Manifest:
            request = ps.SnapshotRequest(
                targets=progress.to_proto(),
                directory=str(directory),
                move=move,
                acknowledged=action.progress.to_proto(),
            )
            written = servers.call(request, _WRITE_S)
            stalled = max(answer.stall_ms for answer in written)
            log.info("checkpoint of step %d: pushes waited %.1f ms", steps, stalled)
            shards = [Snapshot.from_proto(answer.snapshot) for answer in written]
            manifest = replace(
                action.manifest,
                data=action.manifest.data | saved_plan(action.space, progress.retired_before),
                steps=steps,
                shards=len(shards),
                watermarks=progress,
                files={name: size for shard in shards for name, size in shard.files.items()},
                versions=tuple(shard.version for shard in shards),
            )
            return _with_preprocessing(manifest, directory, preprocessing)

        return _commit(claim, action, steps, write)


def commit_local(
    action: CommitLocal, preprocessing: Path | None = None, claim: Claim | None = None
) -> Saved:
    """A checkpoint of the replica that a worker wrote to a folder, which becomes the checkpoint.

    Args:
        preprocessing: a file that is to be part of it, if it exists.
        claim: the folder of checkpoints, if the job has one.

    Raises:
        CheckpointError: a file is missing or truncated.
        OSError: the disk is full or read-only.
    """
    manifest = action.manifest

    def write(directory: Path) -> Manifest:
        return _with_preprocessing(manifest, directory, preprocessing)

    try:
        return _commit(claim, action, manifest.steps, write, written=action.directory)
    finally:
        shutil.rmtree(action.directory, ignore_errors=True)


def _commit(
    claim: Claim | None,
    action: SaveServers | CommitLocal,
    steps: int,
    write: Callable[[Path], Manifest],
    written: Path | None = None,
) -> Saved:
    run, fence = (claim.run, claim.check) if claim is not None else ("", lambda: None)
    saved = layout.save(
        action.root,
        steps,
        write,
        run=run,
        restored=action.restored,
        fence=fence,
        written=written,
        anew=isinstance(action, SaveServers) and action.move > 0,
    )
    return Saved(*saved)


def flush(action: Flush, token: str) -> None:
    """Has every server apply what waits for its quorum.

    Raises:
        CheckpointError: one did not.
    """
    with contextlib.closing(_Servers(action.servers, action.job, token)) as servers:
        servers.call(ps.FlushRequest(), _CALL_S)


class _Servers:
    """All servers of a job, in the order of shards."""

    def __init__(self, servers: Sequence[pb.Server], job: str, token: str) -> None:
        self._stubs = [Stub(services.PSERVER, server.address, token) for server in servers]
        self._fences = [ps.Fence(job=job, incarnation=server.incarnation) for server in servers]

    def call(self, request: Message, timeout_s: float) -> list[Any]:
        """Calls every server at once, each behind its fence, and waits for all answers.

        Raises:
            CheckpointError: one did not answer, or rejected the call.
        """
        calls = []
        for stub, fence in zip(self._stubs, self._fences, strict=True):
            fenced: Any = type(request)()
            fenced.CopyFrom(request)
            fenced.fence.CopyFrom(fence)
            calls.append(stub.start(fenced, timeout_s=timeout_s))
        answers, errors = [], []
        for shard, call in enumerate(calls):
            try:
                answers.append(call.result())
            except grpc.RpcError as error:
                method = services.method_of(request).name
                errors.append(f"{method} on the server of shard {shard}: {error.details()}")
        if errors:
            raise CheckpointError("; ".join(errors))
        return answers

    def close(self) -> None:
        """Closes the connections."""
        for stub in self._stubs:
            stub.close()


@contextlib.contextmanager
def _releasing(servers: _Servers, move: int) -> Iterator[None]:
    """Ends the hold afterwards, where no snapshot has ended it; servers from which the model could
    not move accept pushes again."""
    moved = False
    try:
        yield
        moved = bool(move)
    finally:
        if not moved:
            with contextlib.suppress(CheckpointError):
                servers.call(ps.ReleaseRequest(move=move), _CALL_S)
