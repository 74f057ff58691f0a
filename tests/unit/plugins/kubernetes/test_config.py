"""The options of pods: what each stands for in a manifest, and how wrong ones are rejected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plugins.kubernetes.jobs import job_config
from torch_edl.config import ClusterConfig, JobConfig
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes.config import KubernetesConfig


def test_options_are_parts_of_manifests() -> None:
    config = KubernetesConfig(
        image="registry.example:5000/team/edl@sha256:0123",
        worker_resources="cpu=4,memory=8Gi,nvidia.com/gpu=1",
        volume=(
            "claim=data,path=/data,sub-path=clicks,read-only",
            "claim=data,path=/out",
            "host=/mnt/disk,path=/scratch",
            "config-map=vocab,path=/vocab",
            "secret=keys,path=/keys",
        ),
    )
    assert config.resources("worker") == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}
    assert config.resources("ps") == {}
    own = KubernetesConfig(ps_resources="ephemeral-storage=9Gi,hugepages-2Mi=64Mi")
    assert list(own.resources("ps")) == ["ephemeral-storage", "hugepages-2Mi"]
    volumes, mounts = config.volumes
    assert volumes == [
        {"name": "volume-0", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "volume-1", "hostPath": {"path": "/mnt/disk"}},
        {"name": "volume-2", "configMap": {"name": "vocab"}},
        {"name": "volume-3", "secret": {"secretName": "keys"}},
    ]
    assert mounts[:2] == [
        {"name": "volume-0", "mountPath": "/data", "subPath": "clicks", "readOnly": True},
        {"name": "volume-0", "mountPath": "/out"},
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"worker_resources": "cpu"}, "--worker-resources cpu: 'cpu' has no value; write NAME="),
        ({"ps_resources": "memory=8GB"}, "--ps-resources memory=8GB: '8GB' is no quantity"),
        ({"ps_resources": "cpu=0"}, "--ps-resources cpu=0: must be above 0"),
        ({"ps_resources": "cpu=-1"}, "--ps-resources cpu=-1: '-1' is no quantity"),
        ({"ps_resources": "cpu=1,cpu=2"}, "--ps-resources cpu=1,cpu=2: cpu is there twice"),
        ({"worker_resources": "nvidia.com/gpu=0.5"}, "nvidia.com/gpu is given whole"),
        ({"worker_resources": "mem=8Gi"}, "mem is no resource; did you mean memory?"),
        ({"worker_resources": "CPU=1"}, "CPU is no resource; did you mean cpu?"),
        ({"worker_resources": "gpu=1"}, "gpu is no resource; did you mean nvidia.com/gpu?"),
        ({"ps_resources": "disk=1Gi"}, "write cpu, memory, ephemeral-storage, hugepages-2Mi or"),
        ({"ps_resources": "hugepages=1Gi"}, "hugepages is no resource"),
        ({"worker_resources": "limits.cup=1"}, "limits.cup is no resource"),
        ({"worker_resources": "limits.nvidia.com/gpu=1"}, "the limit of nvidia.com/gpu is its req"),
        ({"volume": ("claim=data",)}, "--volume claim=data: write claim=NAME,path=/data"),
        ({"volume": ("path=/data",)}, "--volume path=/data: write claim=NAME"),
        ({"volume": ("claim=a,host=/b,path=/c",)}, "write claim=NAME"),
        ({"volume": ("claim=a,path=/c,mode=rw",)}, "mode is unknown"),
        ({"volume": ("claim=a,path=data",)}, "path=data is no absolute path"),
        ({"volume": ("claim=a,path=/d,sub-path=../b",)}, "sub-path=../b is no folder of the vol"),
        ({"volume": ("host=data,path=/d",)}, "host=data is no absolute path of a node"),
        ({"volume": ("claim=A_b,path=/d",)}, "'A_b' is no name of an object"),
        ({"volume": ("claim=a,path=/d", "claim=b,path=/d")}, "mounted at /d already"),
        ({"volume": ("claim=a,path=/d,read-only=no",)}, "read-only takes no value"),
        ({"worker_priority": "high=2"}, "--worker-priority high=2: the share"),
        ({"worker_priority": "high=0.7,low=0.6"}, "the shares are more than all workers"),
        ({"priority_class": "High"}, "--priority-class High: no name of an object"),
        ({"namespace": "a.b"}, "--namespace a.b: no name of a namespace"),
        ({"image": "a b"}, "--image 'a b': has a blank"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_values_are_named_with_what_is_expected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        KubernetesConfig(**fields)
    assert message in str(raised.value)


def test_a_share_of_the_workers_has_a_class_and_the_rest_the_other() -> None:
    config = KubernetesConfig(worker_priority="high=0.5", priority_class="low")
    classes = [config.worker_priority_class(place, 5) for place in range(5)]
    assert classes == ["high", "high", "high", "low", "low"]
    both = KubernetesConfig(worker_priority="high=0.25,middle=0.25")
    classes = [both.worker_priority_class(place, 4) for place in range(4)]
    assert classes == ["high", "middle", "", ""]


def test_pods_need_an_image() -> None:
    with pytest.raises(UsageError, match="add --image IMAGE"):
        job_config(pods={"image": ""})


def test_the_configuration_survives_json() -> None:
    template = {"spec": {"containers": [{"name": "main", "tty": True}]}}
    config = job_config(pods={"volume": ("claim=a,path=/a",), "template": template})
    assert JobConfig.from_json(config.to_json()) == config


@given(st.text(alphabet="abc=,:/.-1 \n\x00", max_size=24))
def test_any_text_is_taken_or_rejected_as_the_users_error(text: str) -> None:
    for field in ("worker_resources", "worker_priority", "namespace", "image"):
        _accepts_or_names(field, text)
    _accepts_or_names("volume", (text,))


def _accepts_or_names(field: str, value: Any) -> None:
    try:
        KubernetesConfig(**{field: value})
    except UsageError as error:
        assert str(error).startswith("--" + field.replace("_", "-"))  # noqa: PT017


@pytest.mark.parametrize(
    ("pods", "workers", "message"),
    [
        ({"processes_per_pod": 3}, 2, "--processes-per-pod 3: --workers 2 has fewer in all"),
        ({"processes_per_pod": 0}, 2, "--processes-per-pod 0: must be 1 or more"),
        ({"processes_per_pod": 2, "spares": 1}, 4, "--spares 1: not with --processes-per-pod 2"),
        ({"spares": -1}, 2, "--spares -1: must be 0 or more"),
    ],
)
def test_pods_that_cannot_be(pods: dict[str, int], workers: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job_config(pods=pods, cluster=ClusterConfig(max_workers=workers))
