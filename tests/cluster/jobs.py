"""Jobs on a cluster, as a user submits them: through the command line and a kubeconfig.

Nothing here knows which cluster it is. The data, and the gate for which the counting model waits,
are on a claim that pods of the tests write and read, so that the same tests run on a real cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from tests.cluster.drain import drain

ROOT = Path(__file__).parents[2]
COUNTING = ROOT / "examples" / "counting"
GATED = Path(__file__).parent / "models" / "gated.py"
EDL = [sys.executable, "-m", "torch_edl.cli"]
CLAIM, STATE = "data", "state"

JOB = "count"
"""The counting model as the tests submit it."""
RECORDS = 8000
FLAGS = (
    "--workers", "2", "--ps", "2", "--batch-size", "10", "--records-per-task", "40",
    "--durability", "journal", "--journal-dir", "/data/journals",
    "--state-claim", STATE,
)  # fmt: skip
DELAY_S = 1.0
"""Seconds of a batch until the gate is opened, so that no job is over before it is hurt."""
GATE = "/data/gate"

JSON = dict[str, Any]


def figure(name: str, **values: float) -> None:
    """What was measured, for whoever reads the output of the test (``pytest -rP``)."""
    print(f"{name}: " + ", ".join(f"{key} {value:.1f}" for key, value in values.items()))


class Namespace:
    """The jobs of a new namespace.

    Args:
        kubeconfig: of the cluster; its user may make namespaces.
        image: that has torch-edl.
        folder: for the output of commands.
    """

    def __init__(self, kubeconfig: Path, image: str, folder: Path) -> None:
        self._image, self._folder = image, folder
        api_client = config.new_client_from_config(str(kubeconfig))
        self.core, self.batch = client.CoreV1Api(api_client), client.BatchV1Api(api_client)
        self.scheduling = client.SchedulingV1Api(api_client)
        made = self.core.create_namespace({"metadata": {"generateName": "torch-edl-test-"}})
        self.name: str = made.metadata.name
        name = self.name
        self.env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(folder)}
        # Pods need the account that a namespace gets after its creation.
        self.wait_for(lambda: self.core.list_namespaced_service_account(name).items)
        for claim in (CLAIM, STATE):
            self.core.create_namespaced_persistent_volume_claim(name, {
                "metadata": {"name": claim},
                "spec": {"accessModes": ["ReadWriteMany"],
                         "resources": {"requests": {"storage": "1Gi"}}},
            })  # fmt: skip
        scripts = {f"{word}.py": (COUNTING / f"{word}.py").read_text()
                   for word in ("prepare", "check")}  # fmt: skip
        self.core.create_namespaced_config_map(
            name, {"metadata": {"name": "scripts"}, "data": scripts}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.core.delete_namespace(self.name)

    def edl(self, *words: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return subprocess.run(
            [*EDL, *words, "--namespace", self.name], env=self.env, text=True, timeout=timeout_s,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self._folder,
        )  # fmt: skip

    def page(self) -> JSON:
        """The data of the job's dashboard."""
        file = self._folder / "page.html"
        exported = self.edl("dashboard", JOB, "--export", str(file))
        assert exported.returncode == 0, exported.stdout
        begin = '<script type="application/json" id="data">'
        found: JSON = json.loads(file.read_text().partition(begin)[2].partition("</script>")[0])
        return found

    def prepare(self, records: int) -> None:
        """Writes the numbers from 0 to the claim."""
        code = self._run_pod("prepare", "/scripts/prepare.py", "/data", "--records", str(records))
        assert code == 0, self.report()

    def check(self) -> None:
        """The output of the counting model has counted every record exactly once."""
        code = self._run_pod("check", "/scripts/check.py", "/data/output", "/data")
        assert code == 0, self.report()

    def run_python(self, name: str, code: str) -> int:
        """Runs a program with the claim at ``/data``; its exit code."""
        return self._run_pod(name, "-c", code)

    def _run_pod(self, name: str, *words: str) -> int:
        places = [{"name": "data", "mountPath": "/data"},
                  {"name": "scripts", "mountPath": "/scripts"}]  # fmt: skip
        container = {
            "name": "main", "image": self._image, "command": ["python", *words],
            "volumeMounts": places,
            "resources": {"requests": {"cpu": "100m"}},
        }  # fmt: skip
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}},
                   {"name": "scripts", "configMap": {"name": "scripts"}}]  # fmt: skip
        spec = {"containers": [container], "volumes": volumes, "restartPolicy": "Never",
                "securityContext": {"runAsUser": 1000, "fsGroup": 1000}}  # fmt: skip
        self.core.create_namespaced_pod(self.name, {"metadata": {"name": name}, "spec": spec})
        ended = ("Succeeded", "Failed")
        self.wait_for(lambda: self.core.read_namespaced_pod(name, self.name).status.phase in ended)
        pod = self.core.read_namespaced_pod(name, self.name)
        return int(pod.status.container_statuses[0].state.terminated.exit_code)

    def submit(self, *flags: str, delay_s: float = DELAY_S) -> Job:
        """`torch-edl run` of the counting model. Each of its batches takes ``delay_s`` until
        :meth:`Job.complete`."""
        return self.start(
            "run", GATED, JOB, "--data", "/data/data-*.parquet", "--output", "/data/output",
            *flags, "--", GATE, "--delay", str(delay_s),
        )  # fmt: skip

    def start(
        self, verb: str, file: Path | str, name: str, *flags: str, before: tuple[str, ...] = (),
        cwd: Path | None = None,
    ) -> Job:  # fmt: skip
        """A command that runs a file in pods, with the claim at ``/data``.

        Args:
            before: words in front of the file.
            cwd: the folder of the command.
        """
        words = [
            *EDL, verb, *before, "--volume", f"claim={CLAIM},path=/data",
            "--namespace", self.name, "--image", self._image, "--job-name", name,
            "--platform", "kubernetes", str(file), *flags,
        ]  # fmt: skip
        return Job(self, name, words, self._folder / f"{name}.log", cwd)

    def pods(self, job: str = "", role: str = "") -> list[Any]:
        """All, or those of a job and role; those that are about to end, too."""
        selector = f"torch-edl.dev/job={job}" if job else ""
        selector += f",torch-edl.dev/role={role}" if role else ""
        return list(self.core.list_namespaced_pod(self.name, label_selector=selector).items)

    def running(self, job: str, role: str) -> list[str]:
        """The names of pods that run and are to go on."""
        return [
            pod.metadata.name for pod in self.pods(job, role)
            if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
        ]  # fmt: skip

    def elsewhere(self, job: str, role: str, node: str) -> list[str]:
        """The names of pods that run on other nodes than this one."""
        running = set(self.running(job, role))
        pods = [pod for pod in self.pods(job, role) if pod.spec.node_name != node]
        return [pod.metadata.name for pod in pods if pod.metadata.name in running]

    def add_priority(self, name: str, value: int) -> None:
        """A priority class, unless there is one."""
        with contextlib.suppress(ApiException):
            self.scheduling.create_priority_class({"metadata": {"name": name}, "value": value})

    def sleep(self, name: str, *, cpu: str, priority: str, node: str = "") -> None:
        """A pod of somebody else, which takes a place, on a certain node if one is named."""
        container = {"name": "main", "image": self._image, "command": ["sleep", "1000"],
                     "resources": {"requests": {"cpu": cpu}}}  # fmt: skip
        spec: JSON = {"containers": [container], "priorityClassName": priority}
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        self.core.create_namespaced_pod(self.name, {"metadata": {"name": name}, "spec": spec})

    def left_of(self, job: str) -> list[str]:
        """All objects of a job."""
        selector = f"torch-edl.dev/job={job}"
        lists = (
            self.core.list_namespaced_pod, self.core.list_namespaced_service,
            self.core.list_namespaced_secret, self.core.list_namespaced_config_map,
            self.core.list_namespaced_service_account, self.batch.list_namespaced_job,
        )  # fmt: skip
        found = [list_all(self.name, label_selector=selector).items for list_all in lists]
        return [thing.metadata.name for things in found for thing in things]

    def delete(self, job: str) -> None:
        """All objects of a job go with its Job."""
        self.batch.delete_namespaced_job(
            f"{job}-master", self.name, propagation_policy="Background"
        )
        self.wait_for(lambda: self.left_of(job) == [])

    def evict(self, name: str) -> None:
        """Evict a pod, as a drained node or a scheduler that needs the place does."""
        with contextlib.suppress(ApiException):
            self.core.create_namespaced_pod_eviction(name, self.name, {"metadata": {"name": name}})

    def drain(self, node: str) -> str:
        """`kubectl drain`; why kubectl refuses to."""
        try:
            return drain(self.core, node, timeout_s=100)
        except TimeoutError as error:
            return pytest.fail(f"{error}:\n{self.report()}")

    def kill(self, name: str) -> None:
        """Without a grace period."""
        with contextlib.suppress(ApiException):
            self.core.delete_namespaced_pod(name, self.name, grace_period_seconds=0)

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"it did not come about:\n{self.report()}")
            time.sleep(0.1)

    def kill_process(self, job: str, *words: str, ends: bool = True) -> None:
        """One process of a pod, by the end of its command, or by a part of it. Only where pods are
        processes here."""
        of_job = (f"TORCH_EDL_MASTER={job}-master.{self.name}.svc:".encode(),
                  f"TORCH_EDL_NAMESPACE={self.name}".encode())  # fmt: skip
        command = b"".join(word.encode() + b"\0" for word in words)
        # The newest: the parent of a master has the same command.
        for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda f: -int(f.name)):
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_bytes()
                if not any(name in environment for name in of_job):
                    continue
                found = (folder / "cmdline").read_bytes().rstrip(b"\0") + b"\0"
                if found.endswith(command) or (not ends and command in found):
                    os.kill(int(folder.name), signal.SIGKILL)
                    return
        pytest.fail(f"no process {' '.join(words)}:\n{self.report()}")

    def report(self) -> str:
        """The output of commands, and what the cluster says about the pods."""
        found = [f"==== {log.name}\n{log.read_text()[-4000:]}"
                 for log in sorted(self._folder.glob("*.log"))]  # fmt: skip
        for pod in self.pods():
            statuses = pod.status.container_statuses or []
            states = [{k: v for k, v in s.state.to_dict().items() if v} for s in statuses]
            found.append(f"==== {pod.metadata.name} {pod.status.phase} {states}")
            with contextlib.suppress(ApiException):
                found.append(
                    self.core.read_namespaced_pod_log(pod.metadata.name, self.name, tail_lines=30)
                )
        events = self.core.list_namespaced_event(self.name).items
        found += [f"{e.involved_object.name}: {e.reason}: {e.message}" for e in events[-30:]]
        return "\n".join(map(str, found))


class Job:
    """A running ``torch-edl run``, whose output is in a file."""

    def __init__(
        self, namespace: Namespace, name: str, command: list[str], log: Path, cwd: Path | None
    ) -> None:
        self.name, self._namespace, self.log = name, namespace, log
        self.began = time.monotonic()
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                command, env=namespace.env, stdout=output, stderr=output, cwd=cwd
            )

    def said(self) -> str:
        return self.log.read_text()

    def status(self) -> JSON:
        """What `torch-edl status` says; empty while it does not know the job."""
        said = self._namespace.edl("status", self.name, "--json").stdout
        with contextlib.suppress(ValueError):
            found: JSON = json.loads(said[said.index("{") :])
            return found
        return {}

    def done(self) -> int:
        """Committed records; 0 while there is no status."""
        return int(self.status().get("records", {}).get("done", 0))

    def workers(self) -> list[int]:
        """The numbers of workers that run."""
        listed = self.status().get("processes", [])
        return [p["id"] for p in listed if (p["role"], p["state"]) == ("worker", "running")]

    def first_step_s(self) -> float:
        """Seconds from the command to the first step."""
        since_s = float(self.status()["wall_s"])
        return time.monotonic() - self.began - since_s

    def trains_on(self) -> None:
        """Until more is done than now."""
        before = self.done()
        self.wait_for(lambda: self.done() > before, 100)

    def wait_for(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        """While the client is there."""

        def holds() -> object:
            if (found := condition()) or self.process.poll() is None:
                return found
            return pytest.fail(f"the client has ended:\n{self._namespace.report()}")

        self._namespace.wait_for(holds, timeout_s)

    def finish(self, timeout_s: float = 120) -> int:
        """The exit code of the client."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {timeout_s} s:\n{self._namespace.report()}")

    def complete(self) -> None:
        """Opens the gate: the rest is trained at once, and each record has counted once."""
        assert self._namespace.run_python("open", f"open('{GATE}', 'w')") == 0
        assert self.finish(400) == 0, self._namespace.report()
        self._namespace.check()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
