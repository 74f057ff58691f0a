"""A second machine, as far as the network is concerned."""

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
        self._ip("netns", "add", self.name)
        self._ip("link", "add", self._ours, "type", "veth", "peer", theirs, "netns", self.name)
        self._ip("addr", "add", f"{self.here}/24", "dev", self._ours)
        self._ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", theirs)
        self._ip("-n", self.name, "link", "set", theirs, "up")
        self._ip("-n", self.name, "link", "set", "lo", "up")
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
        self._ip("link", "set", self._ours, "down")

    def mend(self) -> None:
        self._ip("link", "set", self._ours, "up")

    def close(self) -> None:
        self._ip("netns", "del", self.name)

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
