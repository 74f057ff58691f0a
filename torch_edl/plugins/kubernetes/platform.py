"""The entry point of the platform. Commands and masters import it, so it imports the rest late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch_edl.interfaces import Platform

if TYPE_CHECKING:
    from torch_edl.interfaces import Host


class KubernetesPlatform(Platform):
    """Implements :class:`~torch_edl.interfaces.Platform` with the pods of a cluster."""

    def host(self, environment: Mapping[str, str]) -> Host:
        from torch_edl.plugins.kubernetes.host import ClusterHost

        return ClusterHost.of_environment(environment)


PLATFORM = KubernetesPlatform()
