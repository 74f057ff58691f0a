"""A machine for clusters, and jobs on one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.network import why_not

if TYPE_CHECKING:  # they need the client of Kubernetes, an extra
    from tests.cluster.cluster import Cluster
    from tests.cluster.jobs import Job, Namespace

NODES = [{"name": f"node-{word}", "cpu": "8"} for word in "abc"]


@pytest.fixture(scope="session")
def machine() -> None:
    """A machine that can have a cluster; in CI it must."""
    require_networks()


def require_networks() -> None:
    """Skips the test on a machine that cannot have a cluster; in CI it must."""
    if reason := why_not():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Cluster | None]:
    """With the nodes that a module names as ``NODES``. None: the tests run on a cluster of somebody
    else, see `make test-kubernetes`."""
    if os.environ.get("EDL_TEST_KUBECONFIG"):
        yield None
        return
    from tests.cluster.cluster import Cluster

    require_networks()
    nodes = getattr(request.module, "NODES", NODES)
    with Cluster(tmp_path_factory.mktemp("cluster"), nodes=nodes) as started:
        yield started


@pytest.fixture
def orders(cluster: Cluster | None) -> Iterator[Cluster]:
    """The cluster, for a test that orders something to fail in it."""
    if cluster is None:
        pytest.skip("only the cluster of the tests takes orders to fail")
    yield cluster
    cluster.heal()


@pytest.fixture
def namespace(cluster: Cluster | None, tmp_path: Path) -> Iterator[Namespace]:
    """A new one, which goes with all that is in it."""
    from tests.cluster.jobs import Namespace

    kubeconfig = cluster.kubeconfig if cluster else Path(os.environ["EDL_TEST_KUBECONFIG"])
    image = os.environ.get("EDL_TEST_IMAGE") or "edl:test"
    with Namespace(kubeconfig, image, tmp_path) as made:
        yield made


@pytest.fixture
def submit(namespace: Namespace) -> Iterator[Callable[..., Job]]:
    """``submit(records, *flags)``: the counting model, which waits for its gate."""
    from tests.cluster.jobs import DELAY_S

    with contextlib.ExitStack() as stack:

        def start(records: int, *flags: str, delay_s: float = DELAY_S) -> Job:
            namespace.prepare(records)
            return stack.enter_context(
                contextlib.closing(namespace.submit(*flags, delay_s=delay_s))
            )

        yield start


@pytest.fixture
def running(namespace: Namespace, submit: Callable[..., Job]) -> Job:
    """Two workers and two servers that train."""
    from tests.cluster.jobs import FLAGS, JOB, RECORDS

    job = submit(RECORDS, *FLAGS)
    job.wait_for(lambda: len(namespace.running(JOB, "worker")) == 2, 100)
    job.wait_for(lambda: job.done() > 0, 100)
    return job
