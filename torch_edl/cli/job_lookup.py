"""Which jobs a command is about: those of this machine, or those of a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from torch_edl.cli.options import add_option
from torch_edl.config.job import PLATFORMS
from torch_edl.errors import UsageError
from torch_edl.launch.jobs import catalog

if TYPE_CHECKING:
    from torch_edl.launch.jobs.handle import JobHandle


def add_options(parser: argparse.ArgumentParser, *, only_cluster: bool = False) -> None:
    """The options that say where a job is.

    Args:
        only_cluster: the command is for jobs of a cluster, whatever the options say.
    """
    group = parser.add_argument_group("kubernetes")
    if only_cluster:
        text = "where the job is (default: kubernetes)"
        places = PLATFORMS[1:]
        add_option(group, "--platform kubernetes", text, choices=places, default=places[0])
    else:
        text = "where the job is (default: here, or there if one below is given)"
        add_option(group, "--platform local|kubernetes", text, choices=PLATFORMS, default="")
    text = "namespace of the job (default: that of the context)"
    add_option(group, "--namespace NAME", text, default="")
    text = "context of the kubeconfig (default: the current one)"
    add_option(group, "--context NAME", text, default="")


def on_cluster(args: argparse.Namespace) -> bool:
    """Whether a job of a cluster is meant.

    Raises:
        UsageError: both are.
    """
    of_cluster = bool(args.namespace or args.context)
    if of_cluster and args.platform == "local":
        raise UsageError(
            "--platform local: --namespace and --context are for a cluster; leave them out"
        )
    return of_cluster or args.platform == "kubernetes"


def find(args: argparse.Namespace) -> JobHandle:
    """The job that is named; the newest if none is.

    Raises:
        UsageError: there is none.
        ClusterError: the cluster does not answer, or refuses.
    """
    if not on_cluster(args):
        from torch_edl.launch.jobs.handle import LocalJob

        return LocalJob(catalog.find(args.job))
    # Only here: the client of Kubernetes takes long to import, and is an extra.
    from torch_edl.kubernetes.api import Api
    from torch_edl.launch.jobs import cluster_job

    api = Api.of_kubeconfig(context=args.context, namespace=args.namespace)
    return cluster_job.find(api, args.job)


def find_all(args: argparse.Namespace) -> list[JobHandle]:
    """All jobs there, newest first.

    Raises:
        ClusterError: the cluster does not answer, or refuses.
    """
    if not on_cluster(args):
        from torch_edl.launch.jobs.handle import LocalJob

        return [LocalJob(folder) for folder in catalog.all_jobs()]
    from torch_edl.kubernetes.api import Api
    from torch_edl.launch.jobs import cluster_job

    api = Api.of_kubeconfig(context=args.context, namespace=args.namespace)
    return list(cluster_job.all_jobs(api))
