"""The rights that docs/kubernetes.md names are enough: each command runs as an account that has no
others."""

from __future__ import annotations

import contextlib
import re
import secrets
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")

import yaml
from kubernetes import client, utils

from tests.cluster.cluster import Cluster
from tests.cluster.jobs import EDL, FLAGS, JOB, RECORDS, Job, Namespace
from tests.cluster.kinds import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
Rights = dict[str, set[str]]
"""Verbs by resource."""


def documented(command: str) -> Rights:
    """The rights of the row that begins with a command. A row with ``also`` has those of the last
    row without that word, too."""
    whole: Rights = {}
    for first, cell in re.findall(r"^\| `(.*?)`.* \| (.*) \|$", PAGE.read_text(), re.MULTILINE):
        if not re.fullmatch(r"(also )?[a-z/]+(, [a-z/]+)*: .*", cell):
            continue  # of another table
        found: Rights = defaultdict(set)
        for resource, verbs in whole.items() if cell.startswith("also ") else ():
            found[resource] |= verbs
        for part in cell.removeprefix("also ").split("; "):
            resources, verbs = part.split(": ")
            for resource in resources.split(", "):
                found[resource] |= set(verbs.split(", "))
        if not cell.startswith("also "):
            whole = found
        if first == command:
            return found
    raise KeyError(command)


class Account:
    """A user of a namespace who has some rights."""

    def __init__(
        self, cluster: Cluster, namespace: Namespace, folder: Path, rights: Rights
    ) -> None:
        self._namespace = namespace
        name = f"user-{secrets.token_hex(3)}"
        groups = {kind.plural: kind.group for kind in KINDS}
        rules = [
            {"apiGroups": [groups[resource.partition("/")[0]]], "resources": [resource],
             "verbs": sorted(verbs)}
            for resource, verbs in rights.items()
        ]  # fmt: skip
        namespace.core.create_namespaced_service_account(
            namespace.name, {"metadata": {"name": name}}
        )
        cluster.grant(namespace.name, name, rules)
        token = cluster.token_of(namespace.name, name)
        self.api_client = cluster.api_client(token)
        known = yaml.safe_load(cluster.kubeconfig.read_text())
        known["users"][0]["user"] = {"token": token}
        self._kubeconfig = folder / name
        self._kubeconfig.write_text(yaml.safe_dump(known))

    def runs(self) -> None:
        """The commands from now on are those of this user."""
        self._namespace.env["KUBECONFIG"] = str(self._kubeconfig)


@pytest.fixture
def become(orders: Cluster, namespace: Namespace, tmp_path: Path) -> Callable[[Rights], Account]:
    """``become(rights)``: the commands from now on are those of a user with these rights."""

    def become(rights: Rights) -> Account:
        made = Account(orders, namespace, tmp_path, rights)
        made.runs()
        return made

    return become


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_command_runs_with_its_documented_rights(
    namespace: Namespace, become: Callable[[Rights], Account]
) -> None:
    namespace.prepare(RECORDS)
    become(documented("run"))
    with contextlib.closing(namespace.submit("--detach", *FLAGS)) as job:
        assert job.finish(200) == 0, job.said()
        assert f"job {JOB} runs on without this terminal" in job.said()
    become(documented("attach"))
    command = [*EDL, "attach", JOB, "--namespace", namespace.name]
    attached = subprocess.Popen(
        command, env=namespace.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        logs = namespace.edl("logs", JOB)
        assert (logs.returncode, "may not" in logs.stdout) == (0, False), logs.stdout
        become(documented("status"))
        namespace.wait_for(lambda: job.done() > 0, 200)
        assert "worker-0" in namespace.edl("logs", JOB, "--role", "worker", "--id", "0").stdout
        scaled = namespace.edl("scale", JOB, "--workers", "3")
        assert scaled.returncode == 0, scaled.stdout
        assert "workers: 2 before, 3 from now on" in scaled.stdout
        events = namespace.edl("logs", JOB, "--role", "events")
        assert "workers: 2 before, 3 from now on" in events.stdout
        become(documented("chaos"))
        done = namespace.edl("chaos", JOB, "--kill", "worker=1", "--for", "2s", timeout_s=300)
        assert done.returncode == 0, done.stdout
        become(documented("status"))
        done = namespace.edl("stop", JOB, timeout_s=200)
        assert done.returncode == 0, done.stdout
        said, _ = attached.communicate(timeout=100)
        assert "records" in said
        assert "stopped" in said
        assert "may not" not in said
    finally:
        attached.kill()
        attached.wait()
    listed = namespace.edl("list", "--json")
    assert listed.returncode == 0, listed.stdout
    assert '"state": "stopped"' in listed.stdout
    assert f"{JOB}: stopped" in namespace.edl("attach", JOB).stdout
    become(documented("clean"))
    done = namespace.edl("clean", JOB)
    assert done.returncode == 0, done.stdout
    namespace.wait_for(lambda: namespace.left_of(JOB) == [])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_client_that_may_forward_no_port_stays_with_its_job_to_the_end(
    namespace: Namespace, become: Callable[[Rights], Account], submit: Callable[..., Job]
) -> None:
    rights = documented("run")
    del rights["pods/portforward"]
    become(rights)
    job = submit(100, "--workers", "1", "--ps", "1", "--batch-size", "10", delay_s=0.0)
    assert job.finish(300) == 0, namespace.report()
    rule = '{apiGroups: [""], resources: ["pods/portforward"], verbs: ["get", "create"]}'
    assert f"needs the rule {rule}; without it, the progress of the job is not shown" in job.said()
    assert "trained on 100 records" in job.said()
    assert "started again" not in job.said()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_client_that_may_forward_no_port_stops_a_job_with_a_last_checkpoint(
    namespace: Namespace, become: Callable[[Rights], Account], submit: Callable[..., Job]
) -> None:
    rights = documented("run")
    del rights["pods/portforward"]
    admin = namespace.env["KUBECONFIG"]
    become(rights)
    flags = ("--workers", "1", "--ps", "1", "--batch-size", "10")
    job = submit(RECORDS, *flags, "--checkpoint-dir", "/data/checkpoints")
    namespace.env["KUBECONFIG"] = admin
    job.wait_for(lambda: job.done() > 0, 200)
    job.wait_for(lambda: "without it, the progress of the job is not shown" in job.said(), 200)
    job.process.send_signal(signal.SIGINT)
    assert job.finish(300) == 130, namespace.report()
    assert job.status()["state"] == "stopped"
    assert job.status()["checkpoint"], "the last one"
    namespace.wait_for(lambda: not [p for p in namespace.pods(JOB) if p.status.phase == "Running"])


@pytest.mark.slow
def test_a_client_that_lacks_a_right_says_that_the_job_goes_on(
    namespace: Namespace, become: Callable[[Rights], Account], submit: Callable[..., Job]
) -> None:
    rights = documented("run")
    rights["secrets"] -= {"get"}
    become(rights)
    job = submit(RECORDS, *FLAGS)
    assert job.finish(200) == 1, namespace.report()
    assert 'resources: ["secrets"], verbs: ["get"]' in job.said()
    assert f"the job goes on without this client; torch-edl attach {JOB} --namespace" in job.said()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_user_has_applied_runs_and_goes_with_its_job(
    orders: Cluster, namespace: Namespace, become: Callable[[Rights], Account]
) -> None:
    namespace.prepare(400)
    user = become(documented("run --dry-run"))
    made = namespace.submit("--dry-run", *FLAGS, delay_s=0.0)
    assert made.finish(100) == 0, made.said()
    for each in yaml.safe_load_all(made.said()):
        utils.create_from_dict(user.api_client, each, namespace=namespace.name)
    patch = {"stringData": {"token": secrets.token_urlsafe(32)}}
    core = client.CoreV1Api(user.api_client)
    core.patch_namespaced_secret(f"{JOB}-token", namespace.name, patch)
    namespace.env["KUBECONFIG"] = str(orders.kubeconfig)
    namespace.wait_for(lambda: made.status().get("state") == "finished", 200)
    namespace.check()
    # How the job ended is known when no pod of it is left.
    for pod in namespace.pods(JOB):
        namespace.kill(pod.metadata.name)
    assert made.status()["records"]["done"] == 400
    assert len(namespace.left_of(JOB)) > 1
    namespace.delete(JOB)
