"""The manifests of pods, and what they promise."""

from __future__ import annotations

from typing import Any

import pytest

from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.config import KubernetesConfig
from torch_edl.plugins.kubernetes.objects.pod import process_pod


def made(config: KubernetesConfig | None = None, **more: Any) -> dict[str, Any]:
    words: dict[str, Any] = {
        "role": "worker",
        "id": 3,
        "incarnation": "ab12c",
        "command": ["python", "-P", "-m", "torch_edl.training.worker", "--id", "3"],
        "env": {"TORCH_EDL_MASTER": "ctr-master.ml.svc:29400"},
        "grace_s": 25.0,
        "owner": names.controller("ctr", "1-2-3"),
        **more,
    }
    return process_pod("ctr", config or KubernetesConfig(image="repo/edl:1"), **words)


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["spec"]["containers"]
    return dict(found)


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in container(pod)["env"]}


def test_a_pod_is_named_labelled_and_owned() -> None:
    pod = made()
    assert (pod["apiVersion"], pod["kind"]) == ("v1", "Pod")
    assert pod["metadata"]["name"] == names.pod("ctr", "worker", 3, "ab12c")
    assert pod["metadata"]["labels"] == names.labels("ctr", "worker", 3, "ab12c")
    # kubectl drain evicts pods with a controller, and the Job controller would release this one.
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ConfigMap", "ctr-files", "1-2-3")
    assert owner["controller"] is True


def test_a_pod_has_no_privilege() -> None:
    spec = made()["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    assert container(made())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_what_a_pod_may_write_is_mounted() -> None:
    pod = made()
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    paths = {each["mountPath"]: each["name"] for each in container(pod)["volumeMounts"]}
    assert volumes[paths["/tmp"]]["emptyDir"] == {}
    assert volumes[paths["/dev/shm"]]["emptyDir"] == {"medium": "Memory"}
    files = volumes[paths[names.FILES]]["configMap"]
    assert files["name"] == names.files("ctr")
    assert files["items"] == [{"key": names.CONFIG_KEY, "path": names.CONFIG_KEY}]
    assert variables(pod)["HOME"]["value"] == "/tmp"
    assert variables(pod)["TORCH_EDL_HOME"]["value"].startswith("/tmp/")


def test_the_token_is_in_no_manifest() -> None:
    token = variables(made())["TORCH_EDL_TOKEN"]
    assert token == {
        "name": "TORCH_EDL_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": names.token("ctr"), "key": "token"}},
    }


def test_a_process_knows_its_address_and_its_master() -> None:
    found = variables(made())
    assert found["GRPC_VERBOSITY"]["value"] == "ERROR"
    assert found["TORCH_EDL_HOST"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert found["TORCH_EDL_MASTER"]["value"] == "ctr-master.ml.svc:29400"


def test_a_pod_is_not_restarted_and_has_time_to_leave() -> None:
    spec = made(grace_s=41.5)["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 47
    assert container(made())["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_resources_are_of_the_role_and_cpu_has_no_limit() -> None:
    config = KubernetesConfig(
        image="i", worker_resources="cpu=4,memory=8Gi,nvidia.com/gpu=1", ps_resources="memory=2Gi"
    )
    assert container(made(config))["resources"] == {
        "requests": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "1"},
    }
    assert container(made(config, role="ps"))["resources"]["limits"] == {"memory": "2Gi"}
    assert container(made())["resources"] == {}


def test_options_of_the_user_are_in_the_pod() -> None:
    config = KubernetesConfig(
        image="i",
        volume=("claim=data,path=/data,read-only",),
        template={
            "spec": {
                "nodeSelector": {"disk": "ssd"},
                "tolerations": [{"key": "spot", "operator": "Exists"}],
                "imagePullSecrets": [{"name": "registry"}],
                "containers": [{"name": "main", "env": [{"name": "HOME", "value": "/data"}]}],
            }
        },
    )
    pod = made(config, priority_class="high")
    spec = pod["spec"]
    mount = next(m for m in container(pod)["volumeMounts"] if m["mountPath"] == "/data")
    volume = next(v for v in spec["volumes"] if v["name"] == mount["name"])
    assert volume["persistentVolumeClaim"] == {"claimName": "data"}
    assert mount["readOnly"] is True
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["priorityClassName"] == "high"
    assert variables(pod)["HOME"]["value"] == "/data"


@pytest.mark.parametrize(
    ("own", "keys"),
    [
        ([], ["not-ready", "unreachable"]),
        ([{"key": "spot"}], ["spot", "not-ready", "unreachable"]),
        (
            [{"key": "node.kubernetes.io/unreachable", "operator": "Exists"}],
            ["unreachable", "not-ready"],
        ),
        ([{"operator": "Exists"}], [""]),
    ],
)
def test_a_pod_leaves_a_lost_node_soon_unless_the_template_says_otherwise(
    own: list[dict[str, Any]], keys: list[str]
) -> None:
    config = KubernetesConfig(image="i", template={"spec": {"tolerations": own}})
    found = made(config)["spec"]["tolerations"]
    assert [str(each.get("key", "")).rpartition("/")[2] for each in found] == keys


def test_nodes_are_avoided_and_not_forbidden() -> None:
    affinity = made(avoid=["n1", "n2"])["spec"]["affinity"]["nodeAffinity"]
    assert list(affinity) == ["preferredDuringSchedulingIgnoredDuringExecution"]
    [term] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}
    ]
    assert "affinity" not in made()["spec"]
    # The size of a pod is limited.
    assert "n999" not in str(made(avoid=[f"n{i}" for i in range(1000)]))


@pytest.mark.parametrize(
    ("asked", "requests", "limits"),
    [
        ("cpu=2,memory=4Gi", {"cpu": "2", "memory": "4Gi"}, {"memory": "4Gi"}),
        ("cpu=2,limits.cpu=4", {"cpu": "2"}, {"cpu": "4"}),
        ("memory=4Gi,limits.memory=8Gi", {"memory": "4Gi"}, {"memory": "8Gi"}),
        ("limits.cpu=4", None, {"cpu": "4"}),
        ("", None, None),
    ],
)
def test_a_limit_is_that_of_the_user(asked: str, requests: Any, limits: Any) -> None:
    """A namespace with a quota of ``limits.cpu`` rejects pods without one."""
    resources = container(made(KubernetesConfig(image="i", worker_resources=asked)))["resources"]
    assert (resources.get("requests"), resources.get("limits")) == (requests, limits)


def test_servers_are_not_the_first_to_be_evicted_and_are_spread_over_nodes() -> None:
    server = made(role="ps")
    # A pod without requests is of the class BestEffort.
    assert container(server)["resources"] == {"requests": {"cpu": "100m", "memory": "256Mi"}}
    [spread] = server["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"].items() <= server["metadata"]["labels"].items()
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    own = made(KubernetesConfig(image="i", ps_resources="memory=9Gi"), role="ps")
    assert container(own)["resources"]["requests"] == {"memory": "9Gi"}


def test_the_template_of_a_role_comes_after_that_of_all_pods() -> None:
    config = KubernetesConfig(
        image="i",
        template={"spec": {"nodeSelector": {"pool": "any"}, "priorityClassName": "low"}},
        role_templates={"worker": {"spec": {"nodeSelector": {"pool": "gpu"}}}},
    )
    for role, pool in (("worker", "gpu"), ("ps", "any")):
        spec = made(config, role=role)["spec"]
        assert spec["nodeSelector"] == {"pool": pool}
        assert spec["priorityClassName"] == "low"
