"""Jobs for pods, as the client configures them."""

from __future__ import annotations

from typing import Any

from torch_edl.config import JobConfig
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.objects import job
from torch_edl.plugins.kubernetes.objects.submit import submit

TOKEN = "a-token-of-forty-characters-and-more-0123456789"
CODE = {"model.py": b"import net\n", "net.py": b""}
NO_ROOM = {"master_resources": "cpu=99"}
"""Options of a job whose master stays pending."""


def job_config(name: str = "ctr", *, pods: dict[str, Any] | None = None, **parts: Any) -> JobConfig:
    """A job with these options of its pods and these parts of its configuration."""
    return JobConfig(
        name=name,
        model_file="/m.py",
        platform="kubernetes",
        platform_config=KubernetesConfig(**{"image": "edl", **(pods or {})}),
        **parts,
    )


def start(api: Api, name: str = "ctr", **pods: Any) -> dict[str, Any]:
    """Submit a job; the Job of its master."""
    return submit(api, job.in_pods(job_config(name, pods=pods), CODE), token=TOKEN, code=CODE)
