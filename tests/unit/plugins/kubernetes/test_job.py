"""The objects of a job that the client makes: valid for the API, owned by the Job, nothing secret
where it does not belong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.plugins.kubernetes.jobs import TOKEN, job_config
from torch_edl.config import ClusterConfig, DurabilityConfig, JobConfig
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.objects import job

CODE = {"model.py": b"import net.layers\n", "net/layers.py": b"# -*- coding: latin-1 -*-\n# \xe4\n"}
CONFIG = job_config(
    "Clicks_1",
    pods={
        "image": "registry.example/edl:1",
        "master_resources": "cpu=500m,memory=1Gi",
        "volume": ("claim=data,path=/data",),
        "priority_class": "low",
        "state_claim": "state",
        "template": {"spec": {"hostNetwork": False}, "metadata": {"annotations": {"team": "a"}}},
    },
)


def objects_of(
    config: JobConfig = CONFIG, *, token: str = TOKEN, applied: bool = False
) -> list[dict[str, Any]]:
    return job.objects(
        job.in_pods(config, CODE), namespace="team", token=token, code=CODE, applied=applied
    )


def made(config: JobConfig = CONFIG, *, token: str = TOKEN) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in objects_of(config, token=token)}


def with_pods(config: JobConfig, **pods: Any) -> JobConfig:
    return replace(config, platform_config=replace(config.platform_config, **pods))


def test_the_objects_are_what_the_published_schema_allows() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs torch-edl[test]")
    for version in ("1.31", validate.latest_version()):
        for each in made().values():
            validate.validate(each, version, strict=True)
            validate.validate(job.owned(each, "123"), version, strict=True)
        validate.validate(job.suspended(made()["Job"]), version, strict=True)
        for each in made(job_config(), token="").values():
            validate.validate(each, version, strict=True)


def test_all_objects_are_found_by_label_and_go_with_the_job() -> None:
    for kind, each in made().items():
        meta = each["metadata"]
        assert meta["labels"][names.JOB] == names.of_job("Clicks_1")
        assert meta["annotations"][names.JOB] == "Clicks_1"
        assert meta["namespace"] == "team"
        if kind != "Job":
            owner = job.owned(each, "123")["metadata"]["ownerReferences"]
            assert [(o["kind"], o["name"], o["uid"]) for o in owner] == [
                ("Job", made()["Job"]["metadata"]["name"], "123")
            ]
    assert list(made())[-1] == "Job"


def test_the_master_may_own_what_a_user_has_applied() -> None:
    of = objects_of(token="", applied=True)
    assert names.ADOPTS in of[-1]["metadata"]["annotations"]
    [rules] = [each["rules"] for each in of if each["kind"] == "Role"]
    may = {
        (group, kind, name)
        for rule in rules
        if "patch" in rule["verbs"]
        for group, kind, name in zip(
            rule["apiGroups"], rule["resources"], rule["resourceNames"], strict=True
        )
    }
    for each in of:
        group = each["apiVersion"].rpartition("/")[0]
        plural = {"NetworkPolicy": "networkpolicies"}.get(each["kind"], f"{each['kind']}s").lower()
        assert (group, plural, each["metadata"]["name"]) in may


def test_the_token_is_in_the_secret_alone() -> None:
    objects = made()
    assert objects.pop("Secret")["stringData"] == {names.TOKEN_KEY: TOKEN}
    assert TOKEN not in json.dumps(objects)
    assert "stringData" not in made(token="")["Secret"]


def test_the_master_finds_its_configuration_and_its_code() -> None:
    files = made()["ConfigMap"]
    config = JobConfig.from_json(files["data"][names.CONFIG_KEY])
    assert config.model_file == f"{names.CODE}/model.py"
    assert config.platform_config.code == ("model.py", "net/layers.py")
    assert files["data"][names.code_key(0)] == "import net.layers\n"
    assert list(files["binaryData"]) == [names.code_key(1)]
    spec = made()["Job"]["spec"]["template"]["spec"]
    (volume,) = (v for v in spec["volumes"] if v["name"] == "files")
    assert volume["configMap"]["items"] == [
        {"key": names.CONFIG_KEY, "path": names.CONFIG_KEY},
        {"key": names.code_key(0), "path": "code/model.py"},
        {"key": names.code_key(1), "path": "code/net/layers.py"},
    ]
    of_image = job.in_pods(CONFIG, {})
    assert of_image.model_file == CONFIG.model_file


def test_two_masters_may_be_there_only_where_a_lock_keeps_them_apart() -> None:
    spec = made()["Job"]["spec"]
    assert spec["podReplacementPolicy"] == "TerminatingOrFailed"
    assert "podFailurePolicy" not in spec  # which allows no other policy than Failed
    alone = with_pods(CONFIG, state_claim="")
    assert made(alone)["Job"]["spec"]["podReplacementPolicy"] == "Failed"
    etcd = replace(alone, durability=DurabilityConfig(store="etcd://e:2379"))
    assert made(etcd)["Job"]["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
    assert job.suspended(made()["Job"])["spec"]["suspend"] is True


def test_the_master_has_the_rights_it_needs_and_its_pods_no_others() -> None:
    objects = made()
    assert objects["Role"]["rules"] == job.master_rules("Clicks_1")
    [pods, own, files] = objects["Role"]["rules"]
    assert "resourceNames" not in pods
    assert (files["resourceNames"], files["verbs"]) == ([names.files("Clicks_1")], ["get"])
    assert (own["apiGroups"], own["resources"], own["resourceNames"]) == (
        ["batch"], ["jobs"], [objects["Job"]["metadata"]["name"]]
    )  # fmt: skip
    name = objects["ServiceAccount"]["metadata"]["name"]
    assert objects["RoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": name, "namespace": "team"}
    ]
    pod = objects["Job"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == name
    objects = made(with_pods(CONFIG, service_account="mine", network_policy=False))
    assert not {"Role", "RoleBinding", "ServiceAccount", "NetworkPolicy"} & set(objects)
    assert objects["Job"]["spec"]["template"]["spec"]["serviceAccountName"] == "mine"


def test_the_state_of_a_job_with_replicas_is_in_a_config_map_unless_named_elsewhere() -> None:
    replicas = replace(
        with_pods(CONFIG, state_claim=""),
        cluster=ClusterConfig(servers=2),
        durability=DurabilityConfig(mode="replica"),
    )
    of = objects_of(replicas)
    name = names.state("Clicks_1")
    assert [e["metadata"]["name"] for e in of if e["kind"] == "ConfigMap"][1:] == [name]
    [rules] = [each["rules"] for each in of if each["kind"] == "Role"]
    assert rules == job.master_rules("Clicks_1", state=True)
    assert rules[-1] == {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [name],
        "verbs": ["get", "patch"],
    }
    assert of[-1]["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
    claimed = with_pods(replicas, state_claim="state")
    stored = replace(replicas, durability=DurabilityConfig(mode="replica", store="etcd://e:2379"))
    journalled = replace(replicas, durability=DurabilityConfig(mode="journal"))
    for other in (claimed, stored, journalled):
        assert not job.keeps_state(other)
        assert name not in str(made(other))


def test_only_pods_of_the_job_are_admitted_and_only_the_master_is_served() -> None:
    objects = made()
    policy = objects["NetworkPolicy"]["spec"]
    own = {names.JOB: names.of_job("Clicks_1")}
    assert policy["podSelector"] == {"matchLabels": own}
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": own}}]}]
    labels = objects["Job"]["spec"]["template"]["metadata"]["labels"]
    assert objects["Service"]["spec"]["selector"].items() <= labels.items()
    assert own.items() <= labels.items()


def test_metrics_are_found_at_the_pod_of_the_master_and_admitted() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs torch-edl[test]")
    found = made(replace(CONFIG, metrics_port="0.0.0.0:9400"))
    for each in found.values():
        validate.validate(each, validate.latest_version(), strict=True)
    pod = found["Job"]["spec"]["template"]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "9400"
    ports = pod["spec"]["containers"][0]["ports"]
    assert [each["containerPort"] for each in ports if each["name"] == "metrics"] == [9400]
    own, open_to_all = found["NetworkPolicy"]["spec"]["ingress"]
    assert open_to_all == {"ports": [{"port": 9400, "protocol": "TCP"}]}
    assert "from" in own


def test_the_users_template_is_merged_into_the_pod_of_the_master() -> None:
    of = made()["Job"]["spec"]["template"]
    assert of["spec"]["hostNetwork"] is False
    assert of["metadata"]["annotations"] == {names.JOB: "Clicks_1", "team": "a"}


def test_the_master_starts_whatever_the_image_has_in_its_folder() -> None:
    """A ``queue.py`` there must not replace that of Python."""
    spec = made(job_config())["Job"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["command"][:4] == ["python", "-P", "-m", "master"]
    assert spec["containers"][0]["resources"]["requests"], "else it is evicted first"


def test_the_port_of_the_master_is_named_after_its_protocol_for_service_meshes() -> None:
    [port] = made()["Service"]["spec"]["ports"]
    assert port["name"].startswith("tls-")
