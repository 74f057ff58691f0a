"""The entry point of the platform. Commands and masters import it, so it imports the rest late."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch_edl.interfaces.platform import Platform, Submission
from torch_edl.plugins.kubernetes.config import KubernetesConfig

if TYPE_CHECKING:
    from rich.console import Console

    from torch_edl.interfaces.platform import Host, JobHandle, JobOutcome
    from torch_edl.plugins.kubernetes.cluster.api import Api


class KubernetesPlatform(Platform):
    """Implements :class:`~torch_edl.interfaces.Platform` with the pods of a cluster."""

    config = KubernetesConfig
    locators = ("namespace", "context")

    def check(self, args: argparse.Namespace, kind: str) -> Submission:
        from torch_edl.plugins.kubernetes.client import run

        return Submission(*(run.check_script(args) if kind == "script" else run.check(args, kind)))

    def show(self, submission: Submission, args: argparse.Namespace) -> int:
        from torch_edl.plugins.kubernetes.client import run

        return run.show(*submission)

    def run(
        self, submission: Submission, args: argparse.Namespace, console: Console
    ) -> JobOutcome | None:
        from torch_edl.plugins.kubernetes.client import run

        return run.run(*submission, args, console)

    def find(self, name: str | None, where: Mapping[str, str]) -> JobHandle:
        from torch_edl.plugins.kubernetes.client import cluster_job, handle

        return handle.ClusterJobHandle(cluster_job.find(_api(where), name))

    def jobs(self, where: Mapping[str, str]) -> list[JobHandle]:
        from torch_edl.plugins.kubernetes.client import cluster_job, handle

        return [handle.ClusterJobHandle(job) for job in cluster_job.all_jobs(_api(where))]

    def host(self, environment: Mapping[str, str]) -> Host:
        from torch_edl.plugins.kubernetes.master.host import ClusterHost

        return ClusterHost(environment)


def _api(where: Mapping[str, str]) -> Api:
    from torch_edl.plugins.kubernetes.cluster.api import Api

    return Api.of_kubeconfig(context=where["context"], namespace=where["namespace"])


PLATFORM = KubernetesPlatform()


def add_image_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb ``image`` to the commands of torch-edl."""
    from torch_edl.cli.arguments.options import add_option

    line = "write a Dockerfile for pods on Kubernetes"
    image = commands.add_parser("image", help=line, description=f"{line.capitalize()}.")
    image.set_defaults(runs="torch_edl.plugins.kubernetes.client.image.main")
    text = "model file that it is for: one of Keras needs TensorFlow"
    image.add_argument("model_file", metavar="MODEL.py", nargs="?", default="", help=text)
    text = "data that jobs read: what reads it is installed (default: none)"
    add_option(image, "--data PATH", text, nargs="+", action="extend", default=[])
    text = "other extra of torch-edl, such as etcd (default: none)"
    add_option(image, "--extra NAME", text, nargs="+", action="extend", default=[])
    text = "variant of torch: cpu, cu126 (default: cpu)"
    add_option(image, "--torch VARIANT", text, default="cpu")
    text = "what pip installs torch-edl from (default: this version)"
    add_option(image, "--install SPEC", text, default="")
    text = "requirements.txt with what the code needs (default: none)"
    add_option(image, "--requirements FILE", text, default="")
    text = "copy this folder to DIR, for --code-in-image (default: no)"
    add_option(image, "--code DIR", text, default="")
    text = "where to write; - is stdout (default: Dockerfile)"
    add_option(image, "--output FILE", text, default="Dockerfile")
    add_option(image, "--force", "replace the file (default: no)")
