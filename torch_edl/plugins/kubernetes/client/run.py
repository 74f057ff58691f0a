"""``torch-edl run --platform kubernetes`` and ``attach``: a job whose master is on a cluster."""

from __future__ import annotations

import argparse
import secrets
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Console

from torch_edl.checkpoint.durable import check_writable
from torch_edl.cli.arguments import preflight, user_file
from torch_edl.cli.arguments.options import model_file_job
from torch_edl.cli.progress import Display
from torch_edl.config import JobConfig
from torch_edl.config.option import TRAINING
from torch_edl.data.sources.opening import is_object, url_type
from torch_edl.errors import UsageError
from torch_edl.interfaces.platform import JobOutcome
from torch_edl.launch.jobs.observers import Observers
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client import cluster_job
from torch_edl.plugins.kubernetes.client.follow import ClusterFollower
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError
from torch_edl.plugins.kubernetes.objects import job, shared_paths, template
from torch_edl.plugins.kubernetes.objects.submit import submit
from torch_edl.processes.signals import StopSignals
from torch_edl.training.contract.backends import backend_of
from torch_edl.training.contract.source_files import files_of, sources

_DOES = {"train": "trains", "evaluate": "evaluates", "predict": "predicts with", "script": "runs"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def show(config: JobConfig, sent: Mapping[str, bytes]) -> int:
    """Print the objects of a job as YAML, without a request to the cluster."""
    load = config.checkpoint.load
    if load and not load.startswith("/"):
        raise UsageError(
            f"--load {load}: a dry run asks no cluster where that job has its model; write the "
            "folder"
        )
    pods = config.platform_config
    namespace = pods.namespace or Api.namespace_of(pods.context)
    print(as_yaml(config, sent, namespace=namespace), end="")
    return 0


def check_script(args: argparse.Namespace) -> tuple[JobConfig, dict[str, bytes]]:
    """Check the job of a training script, as :func:`check` does for a model file.

    Args:
        args: options of torchrun and of torch-edl.
    """
    # Imported here: torchrun's options import torch.
    from torch_edl.plugins.kubernetes.client import script

    config = script.job_of(args)
    _check_written(args, config)
    return _with_code(config, script.module_file(args) if args.module else None)


def run(
    config: JobConfig, sent: Mapping[str, bytes], args: argparse.Namespace, console: Console
) -> JobOutcome | None:
    """Submit a job and follow it; see :meth:`torch_edl.interfaces.platform.Platform.run`."""
    if config.kind == "script":
        what = f"{args.training_script} is a training script"
    else:
        what = f"{args.model_file} is a model file of {backend_of(args.model_file).title}"
    detach = config.kind in TRAINING and args.detach
    pods = config.platform_config
    api = Api.of_kubeconfig(context=pods.context, namespace=pods.namespace)
    config = _with_model(config, api)
    submit(api, config, token=secrets.token_urlsafe(32), code=sent)
    made = cluster_job.find(api, config.name)
    text = f"{what}: job {made.name} {_DOES[config.kind]} it, in namespace {api.namespace}"
    console.print(text, soft_wrap=True)
    with Observers(config) as observers:
        outcome = _stay(made, config, Display(console, observers.update), detach=detach)
        if outcome is not None:
            observers.end(outcome.state, outcome.error)
    return outcome


def attach(found: cluster_job.ClusterJob, console: Console) -> JobOutcome | None:
    """Show the progress of a job; see :meth:`torch_edl.interfaces.platform.JobHandle.attach`."""
    if found.is_over():
        state, error = found.state(found.master_pod())
        text = f"{found.name}: {state}" + (f": {error}" if error else "")
        console.print(text, soft_wrap=True)
        return None
    return _stay(found, found.config(), Display(console), detach=False, leaves=True)


def check(args: argparse.Namespace, kind: str) -> tuple[JobConfig, dict[str, bytes]]:
    """Check a job without running user code and without a request to the cluster.

    Returns:
        The configuration for the pods, and the source files to send.

    Raises:
        UsageError: a value cannot work, or a file is missing.
    """
    config = model_file_job(args, kind)
    data = config.data
    bound = user_file.check_model_file(config.model_file, shown=args.model_file)
    wanted = {"train": data.train, "evaluate": data.eval, "predict": data.predict}[kind]
    if "data_source" not in bound and not wanted:
        raise UsageError("--data: missing; name files, folders or globs: --data /data/a.parquet")
    if "data_source" not in bound:
        _check_data("--data", wanted)
        preflight.check_streams(data)
        _check_data("--eval-data", data.eval if kind == "train" else ())
    _check_written(args, config)
    if kind == "predict":
        preflight.check_suffix(args.output)
        keep = replace(config.checkpoint, parts=shared_paths.parts(config))
        config = replace(config, checkpoint=keep)
    if args.summary:
        check_writable(Path(args.summary), "--summary", is_file=True)
    return _with_code(config)


def _with_code(config: JobConfig, module: Path | None = None) -> tuple[JobConfig, dict[str, bytes]]:
    """Return the configuration for the pods, and the source files to send.

    Args:
        module: source file of the module of ``-m`` that the job runs; None: there is none here.
    """
    pods = config.platform_config
    if pods.pod_template:
        pods = replace(pods, template=template.load(pods.pod_template))
    of_roles = {
        role: template.load(path, option=f"--{role}-template")
        for role, path in (
            ("worker", pods.worker_template),
            ("ps", pods.ps_template),
            ("master", pods.master_template),
        )
        if path
    }
    config = replace(config, platform_config=replace(pods, role_templates=of_roles))
    if pods.code_in_image:
        place = PurePosixPath(pods.code_in_image)
        if not place.is_absolute():
            raise UsageError(f"--code-in-image {place}: write an absolute path, such as /app")
        if not config.is_module:
            file = str(place / PurePosixPath(config.model_file).name)
            config = replace(config, model_file=file)
        sent = {}
    elif module is not None:
        sent = collect_module(config.model_file, module, Path.cwd())
    else:
        sent = collect_code(config.model_file)
    shared_paths.check(config)
    return job.in_pods(config, sent), sent


def _check_written(args: argparse.Namespace, config: JobConfig) -> None:
    for option in ("output", "checkpoint_dir", "journal_dir"):
        _check_paths(f"--{option.replace('_', '-')}", [getattr(args, option, "") or "/"])
    if "/" in config.checkpoint.load:
        _check_paths(_load(config), [config.checkpoint.load])


def _check_data(option: str, paths: Sequence[str]) -> None:
    _check_paths(option, [path for path in paths if not is_object(path)])


def _check_paths(option: str, paths: Sequence[str]) -> None:
    for path in paths:
        if (kind := url_type(path)) is not None:
            kind.canonical(path)
        elif not path.startswith("/"):
            raise UsageError(
                f"{option} {path}: no absolute path, and this folder is not in the pods; write the "
                "path on a --volume, such as /data/..."
            )


def _load(config: JobConfig) -> str:
    return "--load" if config.trains else "--from"


def _with_model(config: JobConfig, api: Api) -> JobConfig:
    """Return the job with the folder of its initial model, if the user named a job of the cluster.

    The master checks that the folder exists, since the volume may not be mounted on this machine.
    """
    load, option = config.checkpoint.load, _load(config)
    if not load or load.startswith("/"):
        return config
    found = cluster_job.find(api, load)
    found_config, seen = found.config(), found.report()
    keep = found_config.checkpoint
    output = keep.output if found_config.trains and seen["state"] == "finished" else ""
    folder = output or keep.dir or seen["checkpoint"]
    if not folder:
        raise UsageError(
            f"{option} {load}: the job is {seen['state']} and kept no model; --output DIR or "
            "--checkpoint-dir DIR keeps one"
        )
    return replace(config, checkpoint=replace(config.checkpoint, load=folder))


def _stay(
    found: cluster_job.ClusterJob,
    config: JobConfig,
    display: Display,
    *,
    detach: bool,
    leaves: bool = False,
) -> JobOutcome | None:
    at = f"{found.name} {found.where}"
    with StopSignals(_SIGNALS) as signals:
        attendance = ClusterFollower(
            job=found,
            display=display,
            signals=signals,
            leaves=leaves,
        )
        try:
            outcome = attendance.follow(only_start=detach)
        except ClusterError as error:
            again = f"the job goes on without this client; torch-edl attach {at} comes back to it"
            raise ClusterError(f"{error}; {again}") from error
    if outcome is not None:
        return outcome
    for line in (
        f"job {found.name} runs on without this terminal",
        f"see it: torch-edl attach {at}, torch-edl status {at}, torch-edl logs {at} --follow",
        f"stop it: torch-edl stop {at}",
    ):
        display.console.print(line, soft_wrap=True)
    return None


_IMAGE = (
    "build them into the image (torch-edl image writes a Dockerfile), and add --code-in-image PATH"
)
MAX_BYTES = 900 << 10
"""Maximum size of the code, bytes. A ConfigMap holds 1 MiB, which the configuration shares."""


def collect_code(model_file: str) -> dict[str, bytes]:
    """Return the model file and the modules that it imports; see
    :func:`torch_edl.training.contract.source_files.sources`.

    Raises:
        UsageError: the files are too large to be sent, outside the folder, or unreadable.
    """
    file = Path(model_file).absolute()
    return _small(model_file, sources(file, file.parent, fix=_IMAGE))


def collect_module(name: str, file: Path, folder: Path) -> dict[str, bytes]:
    """Return the files of a module of ``-m``, as :func:`collect_code` does for a model file.

    Args:
        folder: root folder of the module and of its local imports.
    """
    # ``python -m`` also runs the parent packages of the module.
    return _small(f"-m {name}", sources(file, folder, files_of(name, folder), fix=_IMAGE))


def _small(shown: str, found: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files. Raises UsageError if they are too large to be sent."""
    total = sum(map(len, found.values()))
    if total > MAX_BYTES:
        largest = max(found, key=lambda name: len(found[name]))
        raise UsageError(
            f"{shown}: it and the {len(found) - 1} local modules that it imports have "
            f"{total >> 10:,} KiB, the largest is {largest} with {len(found[largest]) >> 10:,} "
            f"KiB; at most {MAX_BYTES >> 10} KiB are sent: {_IMAGE}"
        )
    return found


def as_yaml(config: JobConfig, code: Mapping[str, bytes], *, namespace: str) -> str:
    """Return the objects of a job as YAML for ``kubectl apply --server-side -f -``. Without
    ``--server-side``, kubectl stores each object in an annotation of at most 256 KiB.

    The Secret has no token; a comment shows the command that creates one. The uid of the Job is
    known only after ``apply``, so the master sets the owner of the other objects. A comment shows
    the command that deletes all objects, which also works before the master has started.
    """
    import yaml  # only a dry run needs YAML

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as blocks, and repeats objects instead of referring to
        them."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    pods = config.platform_config
    made = job.objects(config, namespace=namespace, token="", code=code, applied=True)
    where = f" --namespace {namespace}"
    where += f" --context {shlex.quote(pods.context)}" if pods.context else ""
    patch = '{"stringData":{"token":"\'$(openssl rand -hex 32)\'"}}'
    kinds = ",".join(each["kind"].lower() for each in made)
    head = f"""\
# Job {config.name} of torch-edl.
#   kubectl apply --server-side{where} -f FILE
# The Secret has no token yet, and no pod starts without one. This makes one:
#   kubectl patch secret{where} {names.token(config.name)} -p '{patch}'
# This deletes everything:
#   kubectl delete{where} {kinds} -l {names.selector(config.name)}
"""
    if config.metrics_port:
        made.append(job.pod_monitor(config.name, namespace))
        head += f"""\
# The PodMonitor is for clusters with the Prometheus operator. On others, kubectl reports that it
# does not know this kind, and applies all other objects. This deletes it:
#   kubectl delete{where} podmonitor {names.master(config.name)}
"""
    return head + yaml.dump_all(
        made, Dumper=Dumper, explicit_start=True, sort_keys=False, width=100
    )
