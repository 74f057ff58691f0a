"""Finds the job that a command names, on this machine or on a cluster."""

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
    """Add the options that say where a job runs.

    Args:
        only_cluster: True if the command supports only jobs on a cluster.
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
    """Return True if the options name a job on a cluster.

    Raises:
        UsageError: the options name both this machine and a cluster.
    """
    of_cluster = bool(args.namespace or args.context)
    if of_cluster and args.platform == "local":
        raise UsageError(
            "--platform local: --namespace and --context are for a cluster; leave them out"
        )
    return of_cluster or args.platform == "kubernetes"


def find(args: argparse.Namespace) -> JobHandle:
    """Return the job that the command names, or the newest job.

    Raises:
        UsageError: the job does not exist.
        ClusterError: the cluster does not answer, or rejects a request.
    """
    if not on_cluster(args):
        from torch_edl.launch.jobs.handle import LocalJob

        return LocalJob(catalog.find(args.job))
    # Imported here: the Kubernetes client is slow to import and belongs to an extra.
    from torch_edl.kubernetes.api import Api
    from torch_edl.launch.jobs import cluster_job

    api = Api.of_kubeconfig(context=args.context, namespace=args.namespace)
    return cluster_job.find(api, args.job)


def find_all(args: argparse.Namespace) -> list[JobHandle]:
    """Return all jobs of this machine or of the namespace, newest first.

    Raises:
        ClusterError: the cluster does not answer, or rejects a request.
    """
    if not on_cluster(args):
        from torch_edl.launch.jobs.handle import LocalJob

        return [LocalJob(folder) for folder in catalog.all_jobs()]
    from torch_edl.kubernetes.api import Api
    from torch_edl.launch.jobs import cluster_job

    api = Api.of_kubeconfig(context=args.context, namespace=args.namespace)
    return list(cluster_job.all_jobs(api))
