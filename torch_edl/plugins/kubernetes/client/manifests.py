"""``torch-edl run --platform kubernetes --dry-run``: the objects of a job as YAML."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from torch_edl.config import JobConfig
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.objects import job


def as_yaml(config: JobConfig, code: Mapping[str, bytes], *, namespace: str) -> str:
    """Return the objects of a job as YAML for ``kubectl apply -f -``.

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
#   kubectl apply{where} -f FILE
# The Secret has no token yet, and no pod starts without one. This makes one:
#   kubectl patch secret{where} {names.token(config.name)} -p '{patch}'
# This deletes everything:
#   kubectl delete{where} {kinds} -l {names.selector(config.name)}
"""
    return head + yaml.dump_all(
        made, Dumper=Dumper, explicit_start=True, sort_keys=False, width=100
    )
