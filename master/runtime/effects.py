"""A thread that executes long-running actions one after another: checkpoints of servers (Hold,
Snapshot), checkpoints of a worker's files, outputs, clean-up."""

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
from master.state.work.progress import steps_of
from torch_edl.checkpoint import layout
from torch_edl.checkpoint.claim import Claim
from torch_edl.checkpoint.durable import replacing
from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.config.parts import PREPROCESSING_FILE
from torch_edl.data.stream_space import saved_plan
from torch_edl.errors import CheckpointError, EdlError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

log = logging.getLogger(__name__)

_HOLD_MS = 10_000
_CALL_S = 20.0
_WRITE_S = 1800.0


class _NoModelError(CheckpointError):
    """The servers have no model yet: no worker has initialised it."""


class Effects:
    """Executes actions in order, in a thread once :meth:`start` was called.

    Args:
        token: token of the job, for calls to the servers.
        preprocessing: file of the fitted preprocessing; copied to every checkpoint once it exists.
        claim: claim on the checkpoint directory, if the job has one.
    """

    def __init__(
        self, *, token: str, preprocessing: Path | None = None, claim: Claim | None = None
    ) -> None:
        self._token = token
        self._preprocessing = preprocessing
        self._claim = claim
        self._queue: queue.SimpleQueue[Effect] = queue.SimpleQueue()

    def start(self, apply: Callable[[EffectEvent], None]) -> None:
        """Begin to execute actions; ``apply`` receives the result of each."""

        def run() -> None:
            while True:
                event = self.execute(self._queue.get())
                if event is not None:
                    apply(event)

        # A daemon: a failed job does not wait for a slow disk.
        threading.Thread(target=run, name="effects", daemon=True).start()

    def submit(self, effect: Effect) -> None:
        """Append an action to the queue."""
        self._queue.put(effect)

    def execute(self, effect: Effect) -> EffectEvent | None:
        """Execute an action. Returns its result, also for a failure; None if it has none."""
        try:
            return self._execute(effect)
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

    def _execute(self, effect: Effect) -> EffectEvent | None:
        match effect:
            case SaveServers():
                return CheckpointSaved(self.save_servers(effect), effect.incarnation)
            case CommitLocal():
                return CheckpointSaved(self.commit_local(effect), effect.incarnation)
            case Flush():
                self.flush(effect)
                return Flushed(effect.incarnation, success=True)
            case Release():
                with self._connected(effect.servers, effect.job) as servers:
                    servers.call(ps.ReleaseRequest(), _CALL_S)
            case WriteOutput():
                # Imported here: the module imports the file formats.
                from torch_edl.checkpoint.export import write_output

                write_output(effect.checkpoint, effect.output)
                return OutputWritten()
            case MergePredictions():
                # Imported here: the module imports pyarrow.
                from torch_edl.data.predictions import merge

                effect.output.parent.mkdir(parents=True, exist_ok=True)
                merge(effect.parts, effect.output, tasks=effect.tasks)
                return OutputWritten()
            case Prune():
                layout.prune(effect.newest, effect.keep, effect.best)
            case KeepPreprocessing():
                assert self._preprocessing is not None
                self._preprocessing.parent.mkdir(parents=True, exist_ok=True)
                with replacing(self._preprocessing) as file:
                    file.write(effect.content)
                return PreprocessingKept()
            case Remove():
                shutil.rmtree(effect.directory, ignore_errors=True)
        return None

    def save_servers(self, action: SaveServers) -> Saved:
        """Write a checkpoint of all servers, at one cut through all their updates.

        Raises:
            CheckpointError: a server does not answer, is not initialised, or could not write.
            OSError: the disk is full or read-only.
        """
        move, connected = action.move, self._connected(action.servers, action.manifest.job)
        with connected as servers, _releasing(servers, move):
            held = servers.call(ps.HoldRequest(timeout_ms=_HOLD_MS, move=move), _CALL_S)
            if not all(answer.initialized for answer in held):
                raise _NoModelError("the servers have no model yet")
            applied = [Watermarks.from_proto(answer.watermarks) for answer in held]
            # The tasks that the master knows to be done are included. In sync mode the last pushes
            # of a task may wait for their quorum, and a manifest that lists the task as done must
            # contain them.
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
                return self._with_preprocessing(manifest, directory)

            return self._commit(action, steps, write)

    def commit_local(self, action: CommitLocal) -> Saved:
        """Make a checkpoint of the replica that a worker wrote to a folder.

        Raises:
            CheckpointError: a file is missing or truncated.
            OSError: the disk is full or read-only.
        """
        manifest = action.manifest

        def write(directory: Path) -> Manifest:
            return self._with_preprocessing(manifest, directory)

        try:
            return self._commit(action, manifest.steps, write, written=action.directory)
        finally:
            shutil.rmtree(action.directory, ignore_errors=True)

    def flush(self, action: Flush) -> None:
        """Make every server apply the pushes that wait for their quorum; CheckpointError if one
        fails."""
        with self._connected(action.servers, action.job) as servers:
            servers.call(ps.FlushRequest(), _CALL_S)

    def _connected(self, servers: Sequence[pb.Server], job: str) -> contextlib.closing[_Servers]:
        return contextlib.closing(_Servers(servers, job, self._token))

    def _with_preprocessing(self, manifest: Manifest, directory: Path) -> Manifest:
        """Copy the fitted preprocessing, if any, to a checkpoint. Returns the manifest with it."""
        file = self._preprocessing
        if file is None or not file.exists():
            return manifest
        copy = shutil.copyfile(file, directory / PREPROCESSING_FILE)
        return replace(manifest, files={**manifest.files, copy.name: copy.stat().st_size})

    def _commit(
        self,
        action: SaveServers | CommitLocal,
        steps: int,
        write: Callable[[Path], Manifest],
        written: Path | None = None,
    ) -> Saved:
        claim = self._claim
        run, fence = (claim.run, claim.check) if claim is not None else ("", lambda: None)
        manifest = action.manifest
        saved = layout.save(
            action.root,
            steps,
            write,
            run=run,
            restored=action.restored,
            fence=fence,
            written=written,
            anew=isinstance(action, SaveServers) and action.move > 0,
            # Servers may have trained more than was evaluated.
            metrics=manifest.metrics if manifest.steps == steps else None,
        )
        return Saved(*saved)


class _Servers:
    """Connections to all servers of a job, in the order of shards."""

    def __init__(self, servers: Sequence[pb.Server], job: str, token: str) -> None:
        self._stubs = [Stub(services.PSERVER, server.address, token) for server in servers]
        self._fences = [ps.Fence(job=job, incarnation=server.incarnation) for server in servers]

    def call(self, request: Message, timeout_s: float) -> list[Any]:
        """Call every server in parallel, each with its fence, and wait for all answers. Raises
        CheckpointError if one did not answer, or rejected the call."""
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
        """Close the connections."""
        for stub in self._stubs:
            stub.close()


@contextlib.contextmanager
def _releasing(servers: _Servers, move: int) -> Iterator[None]:
    """Release the hold of the servers on exit, unless a snapshot has ended it. After a failed move,
    the servers accept pushes again."""
    moved = False
    try:
        yield
        moved = bool(move)
    finally:
        if not moved:
            with contextlib.suppress(CheckpointError):
                servers.call(ps.ReleaseRequest(move=move), _CALL_S)
