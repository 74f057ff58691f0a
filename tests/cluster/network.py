"""The network of the cluster: a namespace with a bridge, and a namespace with an address for each
pod.

The addresses of pods are no loopback addresses and each pod has its own ports, as in a cluster; the
machine outside reaches no pod but through the API server, and no pod reaches the machine. Root is
not needed: without it the cluster lives in a user namespace.
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess

from tests.cluster import linux

GATEWAY, API, DNS = "10.244.0.1", "10.96.0.1", "10.96.0.10"
API_PORT = 443
# The address of a bridge is by default the lowest of its cables, and changes with the pods: the
# other pods would send to the old one for up to a minute.
_BRIDGE = "02:00:0a:f4:00:01"


def enter_cluster() -> bool:
    """This process, which must not have other threads, goes into the namespaces of a new cluster.
    What is open stays open. True if its users are namespaced, too, and there is only one."""
    own_users = linux.unshare_as_root(linux.NEW_NET | linux.NEW_MOUNTS)
    linux.mount("none", "/", flags=linux.RECURSIVE | linux.PRIVATE)
    _ip(
        "link set lo up", f"link add cluster address {_BRIDGE} type bridge", "link set cluster up",
        f"addr add {GATEWAY}/16 dev cluster", f"addr add {API}/32 dev cluster",
        f"addr add {DNS}/32 dev cluster",
    )  # fmt: skip
    return own_users


class PodNetwork:
    """The network of one pod; ends with the last process in it, and :meth:`close`."""

    _numbers = itertools.count(2)

    def __init__(self) -> None:
        number = next(self._numbers)
        self.address = f"10.244.{number // 250}.{number % 250 + 1}"
        self.namespace = linux.new_network()
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self._cable = cable = f"pod{number}"
        ours = f"/proc/{os.getpid()}/fd/{here}"
        try:
            with linux.inside(self.namespace):
                _ip(
                    f"link add eth0 type veth peer name {cable} netns {ours}",
                    f"addr add {self.address}/16 dev eth0", "link set lo up", "link set eth0 up",
                    f"route add default via {GATEWAY}",
                )  # fmt: skip
            _ip(f"link set {cable} master cluster up")
        finally:
            os.close(here)

    def new_socket(self) -> socket.socket:
        """In the network of the pod."""
        with linux.inside(self.namespace):
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    def admit(self, addresses: frozenset[str] | None) -> None:
        """From now on, no others may open connections to the pod, but its own node; None: all."""
        rules = "add table inet admitted\ndelete table inet admitted\n"
        if addresses is not None:
            admitted = ", ".join(sorted({GATEWAY, *addresses}))
            rules += f"""
                table inet admitted {{
                    chain input {{
                        type filter hook input priority 0; policy drop;
                        ct state established,related accept
                        iifname "lo" accept
                        ip saddr {{ {admitted} }} accept
                    }}
                }}
            """
        with linux.inside(self.namespace):
            subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)

    def cut_off(self) -> None:
        """Cut the pod off: no packet reaches or leaves it, and no connection ends."""
        _ip(f"link set {self._cable} down")

    def close(self) -> None:
        if self.namespace >= 0:
            os.close(self.namespace)
            self.namespace = -1


def _ip(*commands: str) -> None:
    subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True, capture_output=True
    )


def why_not() -> str:
    """Why this machine cannot have such a cluster; empty if it can."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            enter_cluster()
            PodNetwork()
            code = 0
        except (OSError, subprocess.CalledProcessError):
            pass
        finally:
            os._exit(code)
    return "" if os.waitpid(pid, 0)[1] == 0 else (
        "no clusters here: they need the command ip and network namespaces, as root or in user "
        "namespaces"
    )  # fmt: skip
