"""One pod on its node, from the pull of the images to the end of the last container."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.container import ContainerSpec
from tests.cluster.kinds import PODS, Object, Refused, name_of, namespace_of
from tests.cluster.network import DNS, PodNetwork
from tests.cluster.pod_files import Missing, PodFiles, copy_log, last_lines
from tests.cluster.pod_requests import set_condition
from tests.cluster.store import Store, now, tell
from tests.cluster.times import LEAST_GRACE_S, PULL_BACK_OFF_S, doubling

ROOT = Path(__file__).parents[2]
# Those that can be pulled.
_IMAGES = "edl", "edl:test"
_IMAGE = re.compile(r"[a-z0-9]+([._/:@-]+[A-Za-z0-9_]+)*")
_LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class Machine:
    """What all pods of the cluster share.

    Args:
        folder: for the pods.
        own_users: see :func:`tests.cluster.network.enter_cluster`.
        pulled: (node, image) of images that are there.
        lost: the time since which a node is silent.
        image_env: variables of every image.
    """

    store: Store
    folder: Path
    own_users: bool
    pulled: set[tuple[str, str]]
    lost: dict[str, float]
    image_env: dict[str, str]

    def log(self, uid: str, container: str) -> Path:
        return self.folder / "logs" / f"{uid}-{container}.log"


class PodRun:
    """Runs a pod.

    Args:
        pod: as the scheduler has bound it.
        files: its volumes and environment.
        remove: deletes the pod when a deletion has come to its end.
    """

    def __init__(
        self, machine: Machine, pod: Object, files: PodFiles, remove: Callable[[], None]
    ) -> None:
        self._machine, self._store, self._pod = machine, machine.store, pod
        self._files, self._remove = files, remove
        self.uid: str = pod["metadata"]["uid"]
        self.namespace, self.name = namespace_of(pod), name_of(pod)
        self.node: str = pod["spec"]["nodeName"]
        self.network: PodNetwork | None = None
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ending = asyncio.Event()
        self._kill_at: float | None = None
        self.has_vanished = False
        self._unsaid: list[Callable[[Object], None]] = []
        self.task = asyncio.create_task(self._run())

    # What the node is told to do

    def end(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after the grace period; a later word may shorten it."""
        grace_s = max(grace_s, LEAST_GRACE_S)
        kill_at = time.monotonic() + grace_s
        if self._kill_at is not None and self._kill_at <= kill_at:
            return
        if self._kill_at is None:
            self._ending.set()
            for process in self._processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
        self._kill_at = kill_at
        asyncio.get_running_loop().call_later(grace_s, self._kill)

    def vanish(self) -> None:
        """Lose the node: the processes are killed, and no status changes."""
        self.has_vanished = True
        self._kill()
        self.task.cancel()

    def _kill(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    # The course of a pod

    async def _run(self) -> None:
        try:
            prepare = asyncio.create_task(self._prepare())
            ending = asyncio.create_task(self._ending.wait())
            await asyncio.wait({prepare, ending}, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if prepare.done():
                prepare.result()
                containers = self._pod["spec"]["containers"]
                self._finish(max(await asyncio.gather(*map(self._run_container, containers))))
            else:
                prepare.cancel()
                self._finish(137)
            if self._ending.is_set():
                self._remove()
        finally:
            if self.network is not None:
                self.network.close()
            # No process stays behind, and none of its status is lost.
            self._kill()

    async def _prepare(self) -> None:
        spec = self._pod["spec"]
        self._change(self._begin)
        for container in spec["containers"]:
            await self._pull(container)
        await self._until_there(self._files.prepare, "FailedMount", "")
        self.network = PodNetwork()
        for container in spec["containers"]:
            security = self._security(container)
            if security.get("runAsNonRoot") and security["runAsUser"] == 0:
                problem = "container has runAsNonRoot and image will run as root"
                self._wait_because(container, "CreateContainerConfigError", problem)
                await asyncio.Event().wait()

            def environment(container: Object = container) -> None:
                assert self.network is not None
                self._files.environment(container, {}, self.network.address)

            await self._until_there(environment, "Failed", "CreateContainerConfigError")

    def _begin(self, pod: Object) -> None:
        status = pod["status"]
        status.setdefault("startTime", now())
        status["hostIP"] = "10.244.0.1"
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        status["containerStatuses"] = [
            _status(container, waiting) for container in pod["spec"]["containers"]
        ]

    async def _pull(self, container: Object) -> None:
        image, node = container["image"], self.node
        if not _IMAGE.fullmatch(image):
            why = f'Failed to apply default image tag "{image}": invalid reference format'
            self._wait_because(container, "InvalidImageName", why)
            self._tell("InspectFailed", why, "Warning")
            await asyncio.Event().wait()
        failures = 0
        while image not in _IMAGES:
            why = (
                f'failed to pull and unpack image "{image}": failed to resolve reference '
                f'"{image}": {image}: not found'
            )
            self._tell("Failed", f'Failed to pull image "{image}": {why}', "Warning")
            self._wait_because(container, "ErrImagePull", why)
            failures += 1
            pause_s = doubling(PULL_BACK_OFF_S, failures)
            await asyncio.sleep(pause_s / 2)
            why = f'Back-off pulling image "{image}": ErrImagePull: {why}'
            self._wait_because(container, "ImagePullBackOff", why)
            self._tell("BackOff", f'Back-off pulling image "{image}"')
            await asyncio.sleep(pause_s / 2)
        if (node, image) not in self._machine.pulled:
            self._tell("Pulling", f'Pulling image "{image}"')
            self._machine.pulled.add((node, image))
            self._tell("Pulled", f'Successfully pulled image "{image}"')

    async def _until_there(self, prepare: Callable[[], object], event: str, reason: str) -> None:
        """Tries again after each change of the objects while something is missing."""
        told = ""
        while True:
            try:
                prepare()
            except Missing as missing:
                if told != str(missing):
                    told = str(missing)
                    self._tell(event, told, "Warning")
                    for container in self._pod["spec"]["containers"] if reason else ():
                        self._wait_because(container, reason, told)
            else:
                return
            await self._store.change().wait()

    def _security(self, container: Object) -> Object:
        """What the container says about its user and rights, or else the pod."""
        of_pod = self._pod["spec"].get("securityContext") or {}
        return {"runAsUser": 1000, **of_pod, **(container.get("securityContext") or {})}

    def _finish(self, code: int) -> None:
        def change(pod: Object) -> None:
            status = pod["status"]
            status["phase"] = "Failed" if code else "Succeeded"
            for kind in ("Ready", "ContainersReady"):
                set_condition(pod, kind, "False", f"Pod{'Failed' if code else 'Completed'}", "")

        self._change(change)

    async def _run_container(self, container: Object) -> int:
        """Until it ends; returns its exit code."""
        name = container["name"]
        folder = self._machine.folder / "pods" / self.uid / f"container-{name}"
        spec = self._spec(container, folder)
        spec.write(folder / "spec.json")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-E", "-m", "tests.cluster.container", folder / "spec.json",
            cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, pass_fds=[spec.network], limit=_LONGEST_LINE,
        )  # fmt: skip
        self._processes[name], started = process, now()
        if self._ending.is_set():
            process.terminate()
        self._change(self._ready)
        self._say(container, {"running": {"startedAt": started}})
        self._tell("Started", f"Started container {name}")
        log = self._machine.log(self.uid, name)
        await copy_log(process.stdout, log)
        code = await process.wait()
        del self._processes[name]
        code, state = self._ended(container, started, code, folder, log)
        again = self._pod["spec"]["restartPolicy"] != "Never"
        assert self._ending.is_set() or not again, "no container is restarted here"
        self._say(container, state)
        return code

    def _ended(
        self, container: Object, started: str, code: int, folder: Path, log: Path
    ) -> tuple[int, Object]:
        """The exit code, and the state of the container."""
        if code < 0:
            code = 128 - code
        reason = "Completed" if code == 0 else "Error"
        message = (folder / "termination-log").read_text(errors="replace")[:4096]
        if problem := (folder / "result").read_text():
            reason, message = "StartError", f"failed to create containerd task: {problem}"
        elif code and not message and container["terminationMessagePolicy"] != "File":
            message = last_lines(log)
        ended = {"exitCode": code, "reason": reason, "startedAt": started,
                 "finishedAt": now(), "containerID": f"containerd://{self.uid}"}  # fmt: skip
        return code, {"terminated": {**ended, **({"message": message} if message else {})}}

    def _spec(self, container: Object, folder: Path) -> ContainerSpec:
        assert self.network is not None
        (folder / "root").mkdir(parents=True)
        for name in ("termination-log", "result"):
            (folder / name).touch()
        (folder / "termination-log").chmod(0o666)
        security = self._security(container)
        search = f"{self.namespace}.svc.cluster.local svc.cluster.local cluster.local"
        more = [security["fsGroup"]] if "fsGroup" in security else []
        return ContainerSpec(
            command=container["command"],
            env=self._files.environment(container, self._machine.image_env, self.network.address),
            host_name=self.name,
            network=self.network.namespace,
            mounts=self._files.mounts(container),
            files={
                "/etc/hosts": f"127.0.0.1 localhost\n::1 localhost\n"
                f"{self.network.address} {self.name}\n",
                "/etc/resolv.conf": f"search {search}\nnameserver {DNS}\noptions ndots:5\n",
                "/etc/hostname": f"{self.name}\n",
            },
            code=[str(ROOT), sys.prefix, sys.base_prefix],
            root=str(folder / "root"),
            user=security["runAsUser"],
            groups=[security.get("runAsGroup", 1000), *more],
            read_only=bool(security.get("readOnlyRootFilesystem")),
            no_new_privileges=security.get("allowPrivilegeEscalation") is False,
            result=str(folder / "result"),
            own_users=self._machine.own_users,
            termination_log=str(folder / "termination-log"),
        )

    # What the node says about the pod

    def _change(self, change: Callable[[Object], None]) -> None:
        """Change the status, if the pod still exists and the node can still report."""
        found = self._store.find(PODS, self.namespace, self.name)
        if found is None or found["metadata"]["uid"] != self.uid or self.has_vanished:
            return
        if self.node in self._machine.lost:
            self._unsaid.append(change)
            return
        self._store.update(PODS, self.namespace, self.name, change)

    def say_all(self) -> None:
        """The node reports again."""
        unsaid, self._unsaid = self._unsaid, []
        for change in unsaid:
            self._change(change)

    def _ready(self, pod: Object) -> None:
        assert self.network is not None
        status = pod["status"]
        status["podIP"] = self.network.address
        status["podIPs"] = [{"ip": self.network.address}]
        status["phase"] = "Running"
        for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"):
            set_condition(pod, kind, "True", "", "")

    def _wait_because(self, container: Object, reason: str, message: str) -> None:
        self._say(container, {"waiting": {"reason": reason, "message": message}})

    def _say(self, container: Object, state: Object) -> None:
        def change(pod: Object) -> None:
            pod["status"]["containerStatuses"] = [
                _status(container, state) if old["name"] == container["name"] else old
                for old in pod["status"]["containerStatuses"]
            ]

        self._change(change)

    def _tell(self, reason: str, message: str, kind: str = "Normal") -> None:
        with contextlib.suppress(Refused):
            tell(self._store, self._pod, "kubelet", reason, message, kind)


def _status(container: Object, state: Object) -> Object:
    return {
        "name": container["name"], "image": container["image"], "imageID": container["image"],
        "ready": "running" in state, "started": "running" in state, "restartCount": 0,
        "state": state, "lastState": {},
    }  # fmt: skip
