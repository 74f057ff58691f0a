"""Other machines, as far as the network is concerned."""

from __future__ import annotations

import itertools
import os
import subprocess


class Network:
    """A network namespace for the second machine, joined to ours by a cable.

    Needs root and ``ip``; :meth:`why_not` says what is missing.
    """

    _numbers = itertools.count()

    def __init__(self) -> None:
        # Tests may run in several processes, whose numbers follow each other.
        number = os.getpid() % 25 * 10 + next(self._numbers) % 10
        self.name = f"edl{os.getpid()}-{number}"
        self._ours, theirs = f"edlo{number}", f"edlt{number}"
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._ours, "type", "veth", "peer", theirs, "netns", self.name)
        _ip("addr", "add", f"{self.here}/24", "dev", self._ours)
        _ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", theirs)
        _ip("-n", self.name, "link", "set", theirs, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")
        self.mend()

    @staticmethod
    def why_not() -> str:
        """Why there is none on this machine; empty if there is."""
        name = f"edl{os.getpid()}-try"
        try:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
        except FileNotFoundError:
            return "there is no command ip"
        if made.returncode:
            return f"no network namespaces here: {made.stderr.strip()}"
        subprocess.run(["ip", "netns", "del", name], check=True)
        return ""

    def command(self, words: list[str]) -> list[str]:
        """To run them there."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        _ip("link", "set", self._ours, "down")

    def mend(self) -> None:
        _ip("link", "set", self._ours, "up")

    def close(self) -> None:
        _ip("netns", "del", self.name)


class Switch:
    """Network namespaces for several machines, joined to ours and to each other by a bridge.

    Needs root and ``ip``; :meth:`why_not` says what is missing.
    """

    _numbers = itertools.count()

    def __init__(self, machines: int) -> None:
        number = os.getpid() % 25 * 10 + next(self._numbers) % 10
        self._bridge, net = f"edlb{number}", f"10.214.{number}"
        self.here = f"{net}.1"
        self._names = [f"edl{os.getpid()}-{number}-{n}" for n in range(machines)]
        self._cables = [f"edlc{number}-{n}" for n in range(machines)]
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.here}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for n, (name, cable) in enumerate(zip(self._names, self._cables, strict=True)):
            _ip("netns", "add", name)
            _ip("link", "add", cable, "type", "veth", "peer", "eth0", "netns", name)
            _ip("link", "set", cable, "master", self._bridge)
            _ip("-n", name, "addr", "add", f"{net}.{n + 2}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            self.mend(n)

    @staticmethod
    def why_not() -> str:
        """Why there is none on this machine; empty if there is."""
        if reason := Network.why_not():
            return reason
        made = subprocess.run(
            ["ip", "link", "add", f"edlt{os.getpid()}", "type", "bridge"],
            capture_output=True,
            text=True,
        )
        if made.returncode:
            return f"no bridges here: {made.stderr.strip()}"
        _ip("link", "del", f"edlt{os.getpid()}")
        return ""

    def command(self, machine: int, words: list[str]) -> list[str]:
        """To run them on a machine, which has a host name of its own."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"machine-{machine}"]
        return ["ip", "netns", "exec", self._names[machine], *named, *words]

    def cut(self, machine: int) -> None:
        _ip("link", "set", self._cables[machine], "down")

    def mend(self, machine: int) -> None:
        _ip("link", "set", self._cables[machine], "up")

    def close(self) -> None:
        for name in self._names:
            _ip("netns", "del", name)
        _ip("link", "del", self._bridge)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
