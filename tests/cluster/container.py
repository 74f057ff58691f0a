"""Runs one container: ``python -m tests.cluster.container SPEC``, by the kubelet.

The container has namespaces of its own for mounts, processes and its host name, and the network
namespace of its pod. Its image is this machine: every folder of the root, with an overlay on it,
so that nothing that the container writes outlives it. Its command is process 1, as in a cluster:
signals without a handler do nothing to it but SIGKILL, and what it leaves behind ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from tests.cluster import linux

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_OWN = ("proc", "sys", "dev", "tmp", "run")


@dataclass
class Mount:
    """A folder or file of this machine in a container."""

    source: str
    target: str
    read_only: bool = False


@dataclass
class ContainerSpec:
    """What the kubelet has found out about a container.

    Args:
        command: of process 1.
        env: all of its environment.
        host_name: of the pod.
        network: file descriptor of the namespace, inherited.
        mounts: the volumes.
        files: texts that are in the image for this pod, such as ``/etc/hosts``.
        code: folders of this machine that the command needs, such as that of Python.
        root: an empty folder, where the root is built.
        user: its number.
        groups: the first is the main one.
        read_only: nothing but the volumes can be written to.
        no_new_privileges: programs that it executes get no more rights.
        result: a file that says why the command could not be executed.
        own_users: this is a user namespace, which has one user only.
    """

    command: list[str]
    env: dict[str, str]
    host_name: str
    network: int
    mounts: list[Mount]
    files: dict[str, str]
    code: list[str]
    root: str
    user: int
    groups: list[int]
    read_only: bool
    no_new_privileges: bool
    result: str
    own_users: bool
    termination_log: str

    def write(self, path: Path) -> None:
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ContainerSpec:
        spec = cls(**json.loads(path.read_text()))
        spec.mounts = [Mount(**mount) for mount in spec.mounts]  # type: ignore[arg-type]
        return spec


def run(spec: ContainerSpec) -> int:
    """The exit code of the container."""
    linux.die_with_parent()
    linux.enter(spec.network)
    os.close(spec.network)
    linux.unshare(linux.NEW_MOUNTS | linux.NEW_PIDS | linux.NEW_UTS | linux.NEW_IPC)
    # From here on a signal for the container is kept until there is one.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child == 0:
        try:
            _become(spec)
        except OSError as error:
            Path(spec.result).write_text(str(error))
        finally:
            os._exit(128)

    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGTERM, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    _, ended = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(ended)
    return code if code >= 0 else 128 - code


def _become(spec: ContainerSpec) -> None:
    """Process 1 of the container."""
    linux.die_with_parent()
    result = os.open(spec.result, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _build_root(spec)
    linux.set_host_name(spec.host_name)
    linux.change_root(spec.root)
    if not spec.own_users:
        os.setgroups(spec.groups)
        os.setresgid(*[spec.groups[0]] * 3)
        os.setresuid(*[spec.user] * 3)
        linux.die_with_parent()
    if spec.no_new_privileges:
        linux.gain_no_privileges()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    try:
        os.execvpe(spec.command[0], spec.command, spec.env)
    except OSError as error:
        os.write(result, f'exec: "{spec.command[0]}": {error.strerror}'.encode())


def _build_root(spec: ContainerSpec) -> None:
    root = spec.root
    linux.mount("none", "/", flags=linux.RECURSIVE | linux.PRIVATE)
    linux.mount("tmpfs", root, "tmpfs", options="mode=755")
    os.mkdir(f"{root}/.written", 0o700)
    written = []
    for entry in sorted(os.listdir("/")):
        here, there = f"/{entry}", f"{root}/{entry}"
        if os.path.islink(here):
            os.symlink(os.readlink(here), there)
        elif os.path.isdir(here) and entry not in _OWN:
            os.mkdir(there)
            # An image is for all users, also if Python is in a folder of the user who tests.
            shared = any(folder.startswith(f"{here}/") for folder in spec.code)
            _overlay(here, there, f"{root}/.written/{entry}", shared, own_users=spec.own_users)
            written.append(there)
    for folder in _OWN:
        os.mkdir(f"{root}/{folder}")
    linux.mount("proc", f"{root}/proc", "proc")
    linux.mount("/sys", f"{root}/sys", flags=linux.BIND | linux.RECURSIVE)
    for folder in ("tmp", "run"):
        linux.mount("tmpfs", f"{root}/{folder}", "tmpfs", options="mode=1777")
        written.append(f"{root}/{folder}")
    _devices(f"{root}/dev", spec)
    for folder in spec.code:
        # What is on another disk than the folder above it is not in the overlay.
        top = folder.split("/")[1]
        if top in _OWN or os.stat(folder).st_dev != os.stat(f"/{top}").st_dev:
            _bind(folder, root + folder)
    for path, text in spec.files.items():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(root + path)
        Path(root + path).write_text(text)
    places = [_place(_resolve(root, mount.target), mount.source) for mount in spec.mounts]
    if spec.read_only:
        for folder in [*written, root]:
            linux.make_read_only(folder)
    for mount, place in zip(spec.mounts, places, strict=True):
        linux.mount(mount.source, place, flags=linux.BIND | linux.RECURSIVE)
        if mount.read_only:
            linux.make_read_only(place)
    for folder in spec.code:
        # A checkout below /tmp, where a pod has a volume.
        if any(folder.startswith(f"{mount.target.rstrip('/')}/") for mount in spec.mounts):
            _bind(folder, root + folder)


def _bind(folder: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    linux.mount(folder, target, flags=linux.BIND | linux.RECURSIVE)


def _overlay(lower: str, target: str, written: str, shared: bool, *, own_users: bool) -> None:
    for part in ("", "/upper", "/work"):
        os.mkdir(written + part)
    mode = stat.S_IMODE(os.stat(lower).st_mode)
    os.chmod(f"{written}/upper", mode | 0o055 * shared)
    options = f"lowerdir={lower},upperdir={written}/upper,workdir={written}/work"
    linux.mount("overlay", target, "overlay", options=options + ",userxattr" * own_users)


def _devices(dev: str, spec: ContainerSpec) -> None:
    linux.mount("tmpfs", dev, "tmpfs", options="mode=755")
    for name in _DEVICES:
        Path(dev, name).touch()
        linux.mount(f"/dev/{name}", f"{dev}/{name}", flags=linux.BIND)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{dev}/{name}")
    os.mkdir(f"{dev}/shm")
    linux.mount("tmpfs", f"{dev}/shm", "tmpfs", options="mode=1777,size=64m")
    Path(dev, "termination-log").touch()
    linux.mount(spec.termination_log, f"{dev}/termination-log", flags=linux.BIND)


def _resolve(root: str, path: str) -> str:
    """Follows the links of a path inside of ``root``: ``/var/run`` is one to ``/run``."""
    place = ""
    for word in path.split("/"):
        step = os.path.normpath(f"{place}/{word}")
        while os.path.islink(root + step):
            step = os.path.normpath(os.path.join(os.path.dirname(step), os.readlink(root + step)))
        place = step
    return root + place


def _place(target: str, source: str) -> str:
    """Makes the place of a mount, as a container engine does."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    return target


if __name__ == "__main__":
    sys.exit(run(ContainerSpec.read(Path(sys.argv[1]))))
