"""What a job that resumes has in common with its checkpoint: the strategy, what fixes the meaning
of a task id, and the order of the records. Compared before anything is started, as far as it is
known then. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_edl.checkpoint.manifest import Manifest
from torch_edl.config import JobConfig
from torch_edl.data.task_space import Shard, TaskSpace, difference
from torch_edl.errors import UsageError

# What others depend on comes first: it is the one to name.
_OPTIONS = {
    "batch_size": "--batch-size {}",
    "local_steps": "--local-steps {}",
    "records_per_task": "--records-per-task {}",
    "seed": "--seed {}",
    "shuffle": "shuffle {}",
}


def continued(config: JobConfig, path: Path, manifest: Manifest) -> JobConfig:
    """A job with the strategy that continues from a checkpoint: the one that the user names, or
    else that of the checkpoint. A ring continues what one worker began, and one worker what a ring
    did.

    Raises:
        UsageError: the checkpoint is of another strategy, or of a script and not of a model file;
            or an option of the job does not fit.
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
    """Raises UsageError unless a ring can continue what one worker began."""
    if manifest.has_tables:
        raise UsageError(
            f"--resume {path}: one worker trained embedding tables of torch-edl, which a ring does "
            f"not have; continue with --workers 1, or {_afresh(path, ' --strategy ps')}"
        )
    records_of(path, manifest)


def records_of(path: Path, manifest: Manifest) -> int:
    """The records in the checkpoint of one worker, as the position of a ring in the data.

    Raises:
        UsageError: they are not the first ones in the order of the tasks.
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
    """Raises UsageError, naming the first difference, unless the options cut the data of a model
    file into the same tasks and minibatches.

    Args:
        then: the ``data`` of the manifest.
    """
    now = identity(config, ())
    options = (key for key in _OPTIONS if then.get(key) != now[key])
    differs = next(((_OPTIONS[key].format(then.get(key)), now[key]) for key in options), None)
    if differs is not None:
        raise _differs(path, differs)


def check_data(path: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UsageError, naming the first difference, unless the data are the same, and those of a
    script are cut into the same tasks.

    Args:
        then: the ``data`` of the manifest.
        now: what :func:`identity` says.
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
    """Raises UsageError, naming the first difference, unless the files have the same contents."""
    for was, has in _pairs(then, now):
        # The time of a file differs where it was copied; a table has nothing else.
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
    """Names of files that were written since, with the same size, first and last block.

    Args:
        then: the ``data`` of the manifest.
        now: what :func:`identity` says.
    """
    return [has.name for was, has in _pairs(then, now) if was.mtime_ns != has.mtime_ns]


def _pairs(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[Shard, Shard]]:
    """The shards of two identities that name the same ones, as far as both know the contents."""
    if "contents" not in then or "contents" not in now:
        return
    sides = [[*map(_shard, each["shards"], each["contents"])] for each in (then, now)]
    yield from zip(*sides, strict=True)


def _shard(named: Sequence[Any], content: Sequence[Any]) -> Shard:
    return Shard(*named, *content)


def epochs_of(manifest: Manifest, space: TaskSpace) -> int:
    """The epochs of which a checkpoint holds tasks."""
    marks = manifest.watermarks
    last = max([marks.retired_before - 1, *marks.offsets])
    return last // space.tasks_per_epoch + 1


def check_extent(config: JobConfig, path: Path, manifest: Manifest, space: TaskSpace) -> None:
    """Raises UsageError if the checkpoint holds training that is not of this job any more."""
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
    """What fixes the meaning of a task id: kept in manifests, compared on resume.

    Args:
        files: of a script, whose one shard is its dataset: digest of its data files.
    """
    made = {
        "shards": [[s.name, s.records] for s in shards],
        "contents": [[s.size, s.mtime_ns, s.fingerprint] for s in shards],
        "records_per_task": config.records_per_task,
        "batch_size": config.data.batch_size,
        "local_steps": config.train.local_steps,
        "seed": config.train.seed,
        "shuffle": config.data.shuffle,
    }
    return made | {"files": files} if config.kind == "script" else made


def _differs(path: Path, differs: tuple[str, Any]) -> UsageError:
    return UsageError(
        f"--resume {path}: it was made with {differs[0]}, now it is {differs[1]}; use the same, or "
        "start afresh with another --checkpoint-dir"
    )


def _afresh(path: Path, more: str = "") -> str:
    return (
        f"begin the data afresh with its values: --load {path}{more}, and another --checkpoint-dir"
    )
