"""A cluster that runs no real job: pods of jobs find no room on its nodes, or no image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.cluster.conftest import require_networks
from torch_edl.plugins.kubernetes.cluster.api import Api

if TYPE_CHECKING:  # it needs the client of Kubernetes, an extra
    from tests.cluster.cluster import Cluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")
    from tests.cluster.cluster import Cluster

    require_networks()
    nodes = [{"name": name, "cpu": "4"} for name in ("n1", "n2")]
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=nodes) as started:
        yield started


@pytest.fixture
def cluster(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster of the user's kubeconfig, in which nothing fails."""
    monkeypatch.setenv("KUBECONFIG", str(shared_cluster.kubeconfig))
    shared_cluster.heal()
    return shared_cluster


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Api]:
    """A namespace of this test alone."""
    made = Api.of_kubeconfig(namespace=cluster.make_namespace())
    yield made
    made.close()
