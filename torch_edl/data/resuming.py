"""Checks that a resumed job matches its checkpoint: the strategy, the meaning of task ids, and the
order of the records; and the differences of the data of two processes. All checks that are possible
then run before any process starts. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig
from torch_edl.data.cuts import CUTS
from torch_edl.data.task_space import Shard, TaskSpace
from torch_edl.errors import UsageError

# Values of an identity in messages, as options of a model file. Options on which others depend come
# first, since the first difference is reported.
_OPTIONS = {
    "batch_size": "--batch-size {}",
    "local_steps": "--local-steps {}",
    "records_per_task": "--records-per-task {}",
    "seed": "--seed {}",
    "shuffle": "shuffle {!r}",
}

# Values of an identity in messages, as arguments of ``job.loader`` if possible.
_ARGUMENTS = {
    "cuts": "version {} of the rules that cut and shuffle data",
    "records": "{:,} records",
    "batch_size": "batch_size={}",
    "records_per_task": "{:,} records a task",
    "shuffle": "shuffle={!r}",
    "seed": "seed={}",
    "epochs": "epochs={}",
    "files": "data files {} (digest of names, record counts and contents)",
}

SAME_SAMPLES = (
    "all processes of a job need the same samples in the same order: give the whole dataset, since "
    "the job assigns its records to the processes (remove split_dataset_by_node, split_by_node or "
    "a sampler by rank), and seed what splits or shuffles it, as in random_split(dataset, lengths, "
    "generator=torch.Generator().manual_seed(0))"
)
"""Advice if the datasets of two processes have different samples."""


def continued(config: JobConfig, path: Path, manifest: Manifest) -> JobConfig:
    """Return the job with the strategy that continues from a checkpoint: the strategy of the user,
    or else of the checkpoint. A ring can continue the checkpoint of a single worker, and a single
    worker the checkpoint of a ring.

    Args:
        path: path of the checkpoint, for messages.

    Raises:
        UsageError: the checkpoint has an incompatible strategy; only one of checkpoint and job
            belongs to a script; or an option of the job does not match the checkpoint.
    """
    then, wanted, data = manifest.strategy, config.train.strategy, manifest.data
    is_script = "pass" in data or "files" in data
    if data and is_script != (config.kind == "script"):
        kinds = ("training script", "model file")
        was, now = kinds if is_script else reversed(kinds)
        raise UsageError(
            f"--resume {path}: a {was} made it, and {config.model_file} is a {now}, with an order "
            f"of the data of its own; {_afresh(path)}"
        )
    if wanted == "auto":
        alone = config.kind == "train" and config.cluster.max_workers == 1
        wanted = "allreduce" if then == "local" and not alone else then
    if manifest.on_servers != (wanted == "ps"):
        servers = " without --ps" if wanted == "ps" else ""
        raise UsageError(
            f"--resume {path}: a checkpoint of the strategy {then}, and the strategy {wanted} "
            "keeps the state of the optimizer in another form; continue with --strategy "
            f"{then}{servers}, or {_afresh(path)}"
        )
    if wanted == "allreduce" and then == "local":
        _check_ring(path, manifest)
    config = replace(config, train=replace(config.train, strategy=wanted))
    if config.kind == "train" and data:
        shards = [Shard(*shard) for shard in data["shards"]]
        was_stream = not any(shard.records for shard in shards)
        if was_stream != config.data.streams:
            kinds = ("a stream", "data that have an end")
            was, now = kinds if was_stream else reversed(kinds)
            raise UsageError(
                f"--resume {path}: it is of {was}, and the job trains on {now}; "
                f"{'add' if was_stream else 'leave out'} --epochs stream, or {_afresh(path)}"
            )
        check_options(config, path, data)
        if not config.data.streams:
            check_extent(config, path, manifest, TaskSpace.for_training(shards, config))
    return config


def _check_ring(path: Path, manifest: Manifest) -> None:
    if manifest.has_tables:
        raise UsageError(
            f"--resume {path}: one worker trained embedding tables of torch-edl, which a ring does "
            f"not have; continue with --workers 1, or {_afresh(path, ' --strategy ps')}"
        )
    records_of(path, manifest)


def records_of(path: Path, manifest: Manifest) -> int:
    """Return the number of trained records in the checkpoint of a single worker, as the position of
    a ring.

    Raises:
        UsageError: the trained records are not the first ones in the order of the tasks, or the
            data is a stream.
    """
    data = manifest.data
    space = TaskSpace(
        [Shard(*shard) for shard in data["shards"]],
        data["records_per_task"],
        seed=data["seed"],
        shuffle=data["shuffle"],
    )
    if not space.tasks_per_epoch:
        raise UsageError(
            f"--resume {path}: a checkpoint of a stream, which has no end; continue with --epochs "
            f"stream --strategy {manifest.strategy}, or {_afresh(path)}"
        )
    task, offsets = manifest.watermarks.retired_before, manifest.watermarks.offsets
    while offsets.get(task, -1) == space.task(task).records:
        task += 1
    if any(offset and id > task for id, offset in offsets.items()):
        raise UsageError(
            f"--resume {path}: a task was put off after an error, and a ring takes the records in "
            f"one order; continue with --workers 1, or {_afresh(path)}"
        )
    return space.records_before(task) + offsets.get(task, 0)


def check_options(config: JobConfig, path: Path, then: Mapping[str, Any]) -> None:
    """Raise UsageError with the first difference, unless the options cut the data of a model file
    into the same tasks and minibatches as before.

    Args:
        then: ``data`` of the manifest.
    """
    if then.get("cuts") != CUTS:
        raise UsageError(
            f"--resume {path}: another version of torch-edl made it, which cut the data into other "
            f"tasks and minibatches; {_afresh(path)}"
        )
    differs = difference(then, identity(config, ()), _OPTIONS)
    if differs is not None:
        raise _differs(path, differs)


def check_data(path: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageError with the first difference, unless the data is the same as before, and the
    data of a script is cut into the same tasks.

    Args:
        then: ``data`` of the manifest.
        now: value of :func:`identity`.
    """
    differs = difference(then, now) if "files" in now else None
    if differs is not None:
        raise _differs(path, differs)
    before = dict(map(tuple, then.get("shards", [])))
    after = dict(map(tuple, now["shards"]))
    if list(before.items()) == list(after.items()):
        _check_contents(path, then, now)
        return
    for name in [*before, *after]:
        if before.get(name) != after.get(name):
            had = f"{before[name]} records" if name in before else "absent"
            has = f"{after[name]} records" if name in after else "absent"
            what = f"{name} was {had}, now it is {has}"
            break
    else:
        what = "the same files come in another order"
    raise UsageError(
        f"--resume {path}: the training data is not what it was made with: {what}; "
        "use the same data, or --load it to train on other data"
    )


def _check_contents(path: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for was, has in _pairs(then, now):
        # A copied file has another time. A table has no fingerprint, so its time is compared.
        same_time = has.fingerprint or was.mtime_ns == has.mtime_ns
        if (was.size, was.fingerprint) != (has.size, has.fingerprint) or not same_time:
            what = f"it was {was}, now it is {has}"
            if str(was) == str(has):
                what = f"its first or its last block is another one ({has})"
            raise UsageError(
                f"--resume {path}: the content of {has.name} is not what it was made with: {what}; "
                "use the same data, or --load it to train on other data"
            )


def touched(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of files with another modification time than in the checkpoint; their sizes,
    first and last blocks are known to be equal. See :func:`check_data` for the arguments."""
    return [has.name for was, has in _pairs(then, now) if was.mtime_ns != has.mtime_ns]


def _pairs(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[Shard, Shard]]:
    """Yield pairs of equal shards of two identities; none if an identity lacks the contents."""
    if "contents" not in then or "contents" not in now:
        return
    sides = [[*map(_shard, each["shards"], each["contents"])] for each in (then, now)]
    yield from zip(*sides, strict=True)


def _shard(named: Sequence[Any], content: Sequence[Any]) -> Shard:
    return Shard(*named, *content)


def epochs_of(manifest: Manifest, space: TaskSpace) -> int:
    """Return the number of epochs that the checkpoint has begun."""
    marks = manifest.watermarks
    last = max([marks.retired_before - 1, *marks.offsets])
    return last // space.tasks_per_epoch + 1


def check_extent(config: JobConfig, path: Path, manifest: Manifest, space: TaskSpace) -> None:
    """Raise UsageError if the checkpoint was trained beyond the end of this job."""
    marks = manifest.watermarks
    last = max([marks.retired_before - 1, *marks.offsets])
    if last < space.total and (
        space.cut is None or marks.offset(space.cut.id) <= space.cut.records
    ):
        return
    if last < space.tasks_per_epoch * space.epochs:
        limit = f"--max-steps {config.train.max_steps}"
    else:
        limit = f"{'epochs=' if config.kind == 'script' else '--epochs '}{space.epochs}"
    epoch = last // max(1, space.tasks_per_epoch) + 1
    raise UsageError(
        f"--resume {path}: it has {manifest.steps:,} steps, up to epoch {epoch}, and the job is "
        f"over after {space.total_steps:,} ({limit}); raise that, or --load it to begin the data "
        "afresh"
    )


def identity(config: JobConfig, shards: Sequence[Shard], files: str = "") -> dict[str, Any]:
    """Return the values that determine the records of each task id. Manifests store these values,
    and a resumed job compares them. ``files`` is the digest of the data files of a script."""
    made = {
        "shards": [[s.name, s.records] for s in shards],
        "contents": [[s.size, s.mtime_ns, s.fingerprint] for s in shards],
        "cuts": CUTS,
        "records_per_task": config.records_per_task,
        "batch_size": config.data.batch_size,
        "local_steps": config.train.local_steps,
        "seed": config.train.seed,
        "shuffle": config.data.shuffle,
    }
    return made | {"files": files} if config.kind == "script" else made


def _differs(path: Path, differs: tuple[str, str]) -> UsageError:
    return UsageError(
        f"--resume {path}: it was made with {differs[0]}, now it is {differs[1]}; use the same, or "
        "start afresh with another --checkpoint-dir"
    )


def _afresh(path: Path, more: str = "") -> str:
    return (
        f"begin the data afresh with its values: --load {path}{more}, and another --checkpoint-dir"
    )


def digest(shards: Sequence[Shard]) -> str:
    """Return a digest of the names, record counts, sizes and fingerprints of data files, in their
    order, and of the rules that cut them. Modification times are ignored, since other machines may
    have copies."""
    files = [[s.name, s.records, s.size, s.fingerprint] for s in shards]
    text = json.dumps([CUTS, files])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def difference(
    then: Mapping[str, Any], now: Mapping[str, Any], words: Mapping[str, str] = _ARGUMENTS
) -> tuple[str, str] | None:
    """Return the first difference of two identities as two texts; None: they do not differ.

    A value that only one identity has is ignored: some are unknown, or belong to other strategies.

    Args:
        words: formats of the values to compare, in the order of the comparison.
    """
    if "cuts" in now:
        then = {"cuts": 2, **then}  # rings store the version since the third
    for name, text in words.items():
        if name in then and name in now and then[name] != now[name]:
            return _in_words(text, then[name]), _in_words(text, now[name])
    return None


def _in_words(text: str, value: Any) -> str:
    return text.format(value) if value != "" else "no data files"
