"""Jobs whose pods the cluster does not make: the client hears why, and every job ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")


from tests.cluster.jobs import JOB, Job, Namespace


def test_pods_beyond_the_limits_of_the_namespace_fail_the_job(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    namespace.core.create_namespaced_limit_range(namespace.name, {
        "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]},
    })  # fmt: skip
    resources = ("--worker-resources", "memory=2Gi", "--master-resources", "memory=1Gi")
    job = submit(100, *resources, "--workers", "2")
    assert job.finish() == 2, namespace.report()
    assert "maximum memory usage per Container is 1Gi, but limit is 2Gi" in job.said()
    assert '"state": "failed"' in namespace.edl("status", JOB, "--json").stdout


def test_a_job_whose_account_has_no_rights_says_so_and_stops(
    namespace: Namespace, submit: Callable[..., Job]
) -> None:
    namespace.core.create_namespaced_service_account(namespace.name, {"metadata": {"name": "weak"}})
    job = submit(100, "--service-account", "weak")
    job.wait_for(lambda: 'resources: ["pods"], verbs: ["create"]' in job.said(), 200)
    assert f"system:serviceaccount:{namespace.name}:weak" in job.said()
    stopped = namespace.edl("stop", JOB)
    assert "stopped" in stopped.stdout, stopped.stdout
    assert job.finish() != 0
    # The Job itself says that it is complete, and its master may not change it.
    assert '"state": "stopped"' in namespace.edl("status", JOB, "--json").stdout
