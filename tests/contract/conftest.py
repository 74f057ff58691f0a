"""The etcd servers of the tests of stores: one open to anybody, and one that asks who comes; their
API server. The PostgreSQL of the tests of sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract import source_cases
from tests.etcd_server import Etcd
from tests.kafka_server import Kafka
from tests.maxcompute_server import MaxCompute
from tests.postgres_server import PASSWORD, Postgres
from torch_edl.plugins.etcd.store import EtcdAccess

if TYPE_CHECKING:  # it needs the client of Kubernetes, an extra
    from tests.cluster.cluster import Cluster


@pytest.fixture(scope="module")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def access(etcd_folder: Path) -> EtcdAccess:
    """To the etcd of :func:`locked_etcd`, as a user says it."""
    variables = {"ETCDCTL_CACERT": "ca.pem", "ETCDCTL_CERT": "client.pem"}
    files = {name: str(etcd_folder / file) for name, file in variables.items()}
    files["ETCDCTL_KEY"] = str(etcd_folder / "client.key")
    return EtcdAccess.from_environment({**files, "ETCDCTL_USER": "root:secret"}, tls=True)


@pytest.fixture(scope="module")
def etcd_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("locked-etcd")


@pytest.fixture(scope="module")
def locked_etcd(etcd_folder: Path) -> Iterator[Etcd]:
    """With TLS, certificates of clients, and a password."""
    server = Etcd(etcd_folder, tls=True)
    server.require_password("secret")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Without nodes. Its kubeconfig is in the environment, as a client looks for it."""
    pytest.importorskip("kubernetes", reason="pip install torch-edl[kubernetes]")
    from tests.cluster.cluster import Cluster
    from tests.cluster.conftest import require_networks

    require_networks()
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as environment, Cluster(folder, nodes=[]) as started:
        environment.setenv("KUBECONFIG", str(started.kubeconfig))
        yield started


@pytest.fixture
def config_map(cluster: Cluster) -> str:
    """A new namespace in which a job has the ConfigMap of its state."""
    namespace = cluster.make_namespace()
    made = {"metadata": {"name": "state"}}
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", made)
    return namespace


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """Its port and its password are in the environment, as libpq looks for them."""
    server = Postgres()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PGPORT", str(server.port))
        environment.setenv("PGPASSWORD", PASSWORD)
        yield server
    server.remove()


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """Its address is in the environment."""
    server = Kafka("numbers:3")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("EDL_TEST_KAFKA", server.address)
        yield server
    server.stop()


@pytest.fixture(scope="module")
def maxcompute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MaxCompute]:
    """Where it is, is in the environment."""
    with pytest.MonkeyPatch.context() as environment:
        server = MaxCompute(tmp_path_factory.mktemp("maxcompute"), environment)
        source_cases.maxcompute.append(server)
        yield server
        source_cases.maxcompute.remove(server)
        server.stop()
