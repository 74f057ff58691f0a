"""Checks before a job is started: files, the initial model, and folders in use."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from torch_edl.checkpoint import claim, layout
from torch_edl.checkpoint.durable import check_writable
from torch_edl.cli.arguments import user_file
from torch_edl.cli.arguments.options import model_file_job
from torch_edl.config import DataConfig, JobConfig
from torch_edl.config.environment import ENV_TOKEN, this_experiment
from torch_edl.config.table_storage import folder_of
from torch_edl.data.resuming import continued
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.launch.jobs import folder, master_host
from torch_edl.launch.jobs.folder import JobFolder
from torch_edl.training.contract.backends import TORCH, backend_of, named
from torch_edl.wire.endpoint import is_local, split

SUFFIXES = (".parquet", ".csv", ".npz")
"""Suffixes of a file of predictions."""


def check(args: argparse.Namespace, kind: str) -> JobConfig:
    """Check a job of a model file without running user code or reading data.

    Returns:
        The configuration with globs expanded and checkpoints found.

    Raises:
        UsageError: a value cannot work, or a file is missing, unreadable or already exists.
    """
    if kind == "predict":
        check_output_file(args.output, SUFFIXES)
    config = model_file_job(args, kind)
    if config.data.keep and Path(args.output).suffix == ".npz":
        raise UsageError(
            f"--keep {config.data.keep}: columns of tables have no place in {args.output}; name a "
            "file that ends in .parquet or .csv"
        )
    bound = user_file.check_model_file(config.model_file, shown=args.model_file)
    user_file.require_imports(config.model_file, shown=args.model_file)
    _check_framework(config, args.model_file)
    if "data_source" not in bound:  # data_source interprets the names itself
        config = dataclasses.replace(config, data=_expand_data(config))
    if config.cluster.endpoint:
        config = _check_machines(args, config)
    if is_here(config):  # the master of another machine has checked its folders
        config = check_folders(config)
    if kind == "predict":
        parts = str(JobFolder(config.name).predictions)
        config = dataclasses.replace(
            config, checkpoint=dataclasses.replace(config.checkpoint, parts=parts)
        )
    if args.summary:
        check_writable(Path(args.summary), "--summary", is_file=True)
    return config


def is_here(config: JobConfig) -> bool:
    """Return True if the master of the job runs on this machine."""
    return not config.cluster.endpoint or is_local(config.cluster.endpoint)


def _check_machines(args: argparse.Namespace, config: JobConfig) -> JobConfig:
    """Return the job of several machines with its experiment, which each of them must run.

    Raises:
        UsageError: the endpoint is invalid, the token is missing or too weak, or an option has no
            effect on a machine without the master.
    """
    endpoint = config.cluster.endpoint
    split(endpoint)
    if not master_host.environment_token(endpoint):
        raise UsageError(
            f"--rdzv-endpoint {endpoint}: other machines need the token of the job; set "
            f"{ENV_TOKEN} to one secret text on all machines, such as the output of "
            "`openssl rand -base64 32`"
        )
    if is_here(config) and (problem := master_host.unreachable(endpoint)):
        raise UsageError(f"--rdzv-endpoint {endpoint}: {problem}")
    if args.detach and not is_here(config):
        raise UsageError(
            f"--detach: the master is on another machine ({endpoint}), and this command only lends "
            "a machine; leave the option out, and end the command with a `&`"
        )
    file = Path(config.model_file)
    experiment = this_experiment(str(file), config.model_args, rdzv_id="none", file=file)
    return dataclasses.replace(config, experiment=experiment)


def _check_framework(config: JobConfig, shown: str) -> None:
    """Raise UsageError for an option that the backend of the model file does not have."""
    backend, train, data = backend_of(config.model_file), config.train, config.data
    used = {
        "--tf-function": train.tf_function,
        "--loader-workers": data.loader_workers,
        "--pin-memory": data.pin_memory,
    }
    for flag, is_used in used.items():
        if is_used and flag not in backend.options:
            raise UsageError(
                f"{flag}: not for model files of {backend.title}, and {shown} is one; leave it out"
            )


def check_folders(config: JobConfig) -> JobConfig:
    """Check the folders of a job, and return the job with the path of the initial model resolved.

    Raises:
        UsageError: a folder is missing, in use or not writable.
    """
    keep = config.checkpoint
    if keep.load:
        option = "--load" if config.trains else "--from"
        found = find_model(keep.load, option=option, whole=keep.load_optimizer)
        keep = dataclasses.replace(keep, load=found)
    if keep.load and keep.resume:
        raise UsageError("--load and --resume: both say where to start; choose one")
    if keep.load_optimizer:
        config = _with_optimizer(config, Path(keep.load))
    if keep.dir:
        check_writable(Path(keep.dir), "--checkpoint-dir", is_file=False)
        if config.kind == "train":  # a node of a script may join the job that uses the folder
            folder.require_free(config.name)
            claim.require_free(keep.dir)
        newest = layout.newest_to_resume(keep.dir, resume=keep.resume)
        config = _continued(config, newest)
    if config.trains and keep.output:
        _check_output_dir(keep.output)
    journal_dir = config.durability.journal_dir
    if journal_dir:
        check_writable(Path(journal_dir), "--journal-dir", is_file=False)
    storage = config.train.table_storage
    if (place := folder_of(storage, "--table-storage")) and not Path(place).is_dir():
        raise UsageError(f"--table-storage {storage}: no such folder; create it on a local disk")
    return dataclasses.replace(config, checkpoint=keep)


def _continued(config: JobConfig, newest: Path | None) -> JobConfig:
    """Return the job, checked against the checkpoint from which it is resumed."""
    if newest is None:
        return config
    # Imported here: the module imports numpy.
    from torch_edl.checkpoint.tensor_files import optimizer_header

    try:
        manifest = layout.read(newest)
        is_keras = not manifest.on_servers and bool(optimizer_header(newest).get("keras"))
    except CheckpointError as error:
        raise UsageError(f"--resume: {error}") from error
    config = continued(config, newest, manifest)
    if not manifest.on_servers and config.kind == "train":
        wrote = named("keras" if is_keras else TORCH)
        own = backend_of(config.model_file)
        if wrote is not own:
            raise UsageError(
                f"--resume {newest}: it has the state of an optimizer of {wrote.title}, and "
                f"{config.model_file} is a model file of {own.title}; begin the data afresh with "
                f"its values: --load {newest}, and another --checkpoint-dir"
            )
    return config


def _with_optimizer(config: JobConfig, load: Path) -> JobConfig:
    """Return the job with the strategy that can load the optimizer of a checkpoint.

    Raises:
        UsageError: the user chose another strategy, or the job trains a Keras model.
    """
    on_servers, wanted = layout.read(load).on_servers, config.train.strategy
    if (
        config.kind == "train"
        and not on_servers
        and backend_of(config.model_file) is not named(TORCH)
    ):
        raise UsageError(
            "--load-optimizer: only for torch models and parameter servers; leave it out"
        )
    if wanted == "auto":
        alone = config.kind == "train" and config.cluster.max_workers == 1
        wanted = "ps" if on_servers else "local" if alone else "allreduce"
    if on_servers != (wanted == "ps"):
        wrote = layout.read(load).strategy
        raise UsageError(
            f"--load-optimizer: {load} is a checkpoint of the strategy {wrote}, which keeps the "
            f"state of the optimizer in another form than {wanted}; train with --strategy {wrote}, "
            "or leave --load-optimizer out"
        )
    return dataclasses.replace(config, train=dataclasses.replace(config.train, strategy=wanted))


def find_model(named: str, *, option: str, whole: bool = False) -> str:
    """Return the absolute path of the trained model that the user names.

    Args:
        named: an output folder, a checkpoint, a folder of checkpoints, or a job of this machine.
        whole: the model must have the state of its optimizer, so it must be a checkpoint.

    Raises:
        UsageError: there is no trained model, or a damaged one.
    """
    # Absolute, since the processes of the job may have other working folders; symbolic links are
    # kept.
    path = Path(named).expanduser().absolute()
    try:
        found = layout.trained_model(path) if path.is_dir() else _of_job(named, option, whole)
    except CheckpointError as error:
        raise UsageError(f"{option} {named}: {error}") from error
    if found is None:
        raise UsageError(
            f"{option} {named}: no trained model there; name the --output or the "
            "--checkpoint-dir of a job"
        )
    if whole and not layout.is_checkpoint(found):
        raise UsageError(
            f"{option} {named}: an output, which has no state of an optimizer; name the "
            "--checkpoint-dir of a job, or leave --load-optimizer out"
        )
    return str(found)


def _of_job(named: str, option: str, whole: bool) -> Path | None:
    """Return the output of a job unless the model must be ``whole``, or else its newest
    checkpoint."""
    job = JobFolder(Path(named).name)
    if job.name != named or not job.config_file.is_file():
        problem = "not a folder" if Path(named).exists() else "no such folder, and no such job"
        raise UsageError(
            f"{option} {named}: {problem}; name the output or the checkpoints of a job"
        )
    config = job.config()
    # A script may choose the folder of its checkpoints; the script reports it to the master.
    last = str(job.last_status().get("checkpoint") or "")
    output = "" if whole else config.checkpoint.output
    places = [Path(p) for p in (output, config.checkpoint.dir, last) if p]
    if not places or not config.trains:
        raise UsageError(
            f"{option} {named}: the job kept no model; --output DIR or --checkpoint-dir DIR keeps "
            "one"
        )
    found = (layout.trained_model(place) for place in places if place.is_dir())
    return next(filter(None, found), None)


def _expand_data(config: JobConfig) -> DataConfig:
    from torch_edl.data.sources import check_source, expand
    from torch_edl.data.sources.opening import formats

    data = config.data
    wanted = {"train": data.train, "evaluate": data.eval, "predict": data.predict}[config.kind]
    if not wanted:
        raise UsageError("--data: missing; name files, folders or globs: --data train.parquet")

    def files(paths: tuple[str, ...], option: str = "--data") -> tuple[str, ...]:
        try:
            found = tuple(expand(paths)) if paths else ()
            for path in found:
                check_source(path, format=data.format)
            return found
        except UsageError as error:
            raise UsageError(f"{option} {error}") from error

    if data.format not in ("auto", *formats()):
        raise UsageError(f"--format {data.format}: choose one of auto, {', '.join(formats())}")
    check_streams(data)
    train = files(data.train)
    if data.streams:
        from torch_edl.data.sources.opening import url_type

        for url in train:
            url_type(url).check_stream(url)
    return dataclasses.replace(
        data,
        train=train,
        eval=files(data.eval, "--eval-data" if config.kind == "train" else "--data"),
        predict=files(data.predict),
        expanded=True,
    )


def check_streams(data: DataConfig) -> None:
    """Raise UsageError if a stream is requested and the data have an end."""
    from torch_edl.data.sources.opening import is_stream

    for path in data.train if data.streams else ():
        if not is_stream(path):
            raise UsageError(
                f"--epochs stream: --data {path} has an end; name topics, such as "
                "kafka://host:9092/clicks, or a number of epochs"
            )


def _check_output_dir(directory: str) -> None:
    """Raise UsageError unless ``directory`` is absent, empty or an earlier output."""
    path = Path(directory)
    if path.is_dir() and any(path.iterdir()) and not layout.is_export(path):
        raise UsageError(
            f"--output {directory}: holds files that are no output of torch-edl; "
            "choose another folder, or empty it"
        )
    check_writable(path, "--output", is_file=False)


def check_suffix(
    file: str, *, suffixes: tuple[str, ...] = SUFFIXES, option: str = "--output"
) -> None:
    """Raise UsageError unless the name of ``file`` ends in one of ``suffixes``."""
    if Path(file).suffix not in suffixes:
        raise UsageError(f"{option} {file}: the name must end in {' or '.join(suffixes)}")


def check_output_file(file: str, suffixes: tuple[str, ...], *, option: str = "--output") -> None:
    """Raise UsageError unless ``file`` can be written and ends in one of ``suffixes``."""
    check_suffix(file, suffixes=suffixes, option=option)
    check_writable(Path(file).expanduser(), option, is_file=True)
