"""The calls of Linux that make a container, which Python does not have (some come with 3.12)."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USER, NEW_PIDS, NEW_NET = 0x10000000, 0x20000000, 0x40000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_DETACH = 0x2
_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p,
)  # fmt: skip


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Gives the calling thread namespaces of its own."""
    _check(_libc.unshare(flags), "unshare")


def unshare_as_root(flags: int) -> bool:
    """Gives this process, which must not have other threads, namespaces in which it is root. True
    if its users are namespaced, too, and there is only one."""
    user, group = os.getuid(), os.getgid()
    own_users = user != 0
    unshare(flags | (NEW_USER if own_users else 0))
    if own_users:
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {user} 1"),
            ("gid_map", f"0 {group} 1"),
        ):
            with open(f"/proc/self/{file}", "w") as place:
                place.write(text)
    return own_users


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    """In another network namespace, named by its file descriptor: what is opened stays there."""
    ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(namespace)
        yield
    finally:
        enter(ours)
        os.close(ours)


def enter(namespace: int) -> None:
    """The calling thread goes into a network namespace."""
    _check(_libc.setns(namespace, NEW_NET), "setns")


def new_network() -> int:
    """A file descriptor that keeps a new network namespace."""
    ours = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        unshare(NEW_NET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    finally:
        enter(ours)
        os.close(ours)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None
    )
    _check(result, f"mount {kind} {source} at {target}")


def make_read_only(target: str) -> None:
    """The mount at ``target``, not those below it."""
    mount("none", target, flags=BIND | REMOUNT | READ_ONLY)


def change_root(root: str) -> None:
    """``root``, a mount, becomes the root; the old one is gone."""
    os.chdir(root)
    _check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _DETACH), "umount")
    os.chdir("/")


def set_host_name(name: str) -> None:
    word = name.encode()[:64]
    _check(_libc.sethostname(word, len(word)), "sethostname")


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends; forgotten when the user changes."""
    _check(_libc.prctl(_PDEATHSIG, 9, 0, 0, 0), "prctl")


def gain_no_privileges() -> None:
    """No program that this process executes gets more rights than it has."""
    _check(_libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
