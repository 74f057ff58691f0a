"""Runs a training script in pods: translates the command line of torchrun for the nodes there."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from torch_edl.cli.arguments import user_file
from torch_edl.cli.arguments.options import add_options, script_job
from torch_edl.config import JobConfig, Launch
from torch_edl.config.parts import MOST_WORKERS
from torch_edl.errors import UsageError
from torch_edl.launch.jobs.folder import new_name
from torch_edl.launch.torchrun import options as rendezvous

# Seconds to wait for pods that the cluster has no room for yet: they may be pending for days.
_JOIN_TIMEOUT_S = 30 * 86400
# Options of torchrun that pods do not need: the address of the master is known, and a pod has no
# terminal.
_WITHOUT_EFFECT = {
    "standalone": "--standalone",
    "rdzv_endpoint": "--rdzv-endpoint",
    "master_port": "--master-port",
    "node_rank": "--node-rank",
    "local_addr": "--local-addr",
    "log_dir": "--log-dir",
    "no_python": "--no-python",
    "run_path": "--run-path",
}


def job_of(args: argparse.Namespace) -> JobConfig:
    """Return the job of a script in pods; paths are as the user wrote them.

    Args:
        args: options of torchrun and of torch-edl.

    Raises:
        UsageError: a value cannot work in pods, or the script does not use torch_edl.
    """
    script = args.training_script
    for name, flag in _WITHOUT_EFFECT.items():
        if getattr(args, name):
            raise UsageError(f"{flag}: not for pods; leave it out, or run on machines")
    if not _uses_torch_edl(args):
        raise UsageError(
            f"{script}: does not use torch_edl, and pods are for scripts that do; add "
            "torch_edl.init() to the script"
        )
    least, most, per_pod = _workers(args)
    configs = rendezvous.unquoted(_conf(args.rdzv_conf))
    join_s = rendezvous.seconds(configs, "join_timeout", _JOIN_TIMEOUT_S)
    name = args.job_name or new_name(script.rpartition(".")[2] if args.module else script)
    job = script_job(args, name=name, min_workers=least, max_workers=most, join_timeout_s=join_s)
    configs["join_timeout"] = f"{join_s:g}"
    # The master decides how many pods there are; this is the limit of any job.
    most_pods = MOST_WORKERS // per_pod
    options = [
        *_of_torchrun(args),
        *("--nnodes", f"{-(-least // per_pod)}:{most_pods}"),
        *("--nproc-per-node", str(per_pod)),
        *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in configs.items())),
        *(("--seed", str(args.seed)) if args.seed is not None else ()),
    ]
    pods = replace(job.platform_config, torchrun=tuple(options), processes_per_pod=per_pod)
    launch = Launch(
        min_nodes=-(-least // per_pod),
        max_nodes=most_pods,
        per_node=per_pod,
        max_restarts=args.max_restarts,
        grace_s=job.cluster.grace_s,
    )
    return replace(job, platform_config=pods, launch=launch)


def _workers(args: argparse.Namespace) -> tuple[int, int, int]:
    """Return the minimum and maximum number of workers, and the number of workers per pod."""
    per_pod = args.nproc_per_node
    if not per_pod.isdecimal() or int(per_pod) < 1:
        raise UsageError(
            f"--nproc-per-node {per_pod}: the machine of a pod is not known; write a number"
        )
    if args.workers is not None:
        return (*args.workers, 1)
    least, colon, most = args.nnodes.partition(":")
    if not least.isdecimal() or (colon and not most.isdecimal()):
        raise UsageError(f"--nnodes {args.nnodes}: write a number of pods, or MIN:MAX")
    count = int(per_pod)
    return int(least) * count, int(most or least) * count, count


def _conf(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in filter(None, text.split(",")))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _of_torchrun(args: argparse.Namespace) -> list[str]:
    """Return the words before the script that are options of torchrun."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_options(parser, "script")
    return parser.parse_known_args(args.before)[1]


def module_file(args: argparse.Namespace) -> Path | None:
    """Return the file of a module of ``-m`` below this folder; None: the image must have it.

    Raises:
        UsageError: the module is not below this folder, and ``--code-in-image`` is not given.
    """
    name = args.training_script
    found = user_file.find_module(name, [os.getcwd()])
    if found is None and not args.code_in_image:
        raise UsageError(
            f"-m {name}: no such module below {os.getcwd()}, whose modules are sent to the pods; "
            "change the folder, or build the module into the image and add --code-in-image PATH"
        )
    return found


def _uses_torch_edl(args: argparse.Namespace) -> bool:
    if not args.module:
        return user_file.uses_torch_edl(args.training_script)
    file = module_file(args)
    # A module that is only in the image cannot be read here; its node checks it in the pod.
    return file is None or user_file.uses_torch_edl(str(file), Path.cwd())
