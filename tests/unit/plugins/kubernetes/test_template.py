"""The pod template: merged by the rules of strategic merge, and the same however often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes.objects.template import (
    MERGE_KEYS,
    MERGED_VALUES,
    check,
    load,
    merge,
)

POD: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}, "finalizers": ["x"]},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "containers": [
            {
                "name": "main",
                "image": "edl",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    },
}


def main_of(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pod["spec"]["containers"][0]
    return found


def test_lists_with_a_key_are_merged_and_others_replaced() -> None:
    patch = {
        "metadata": {"labels": {"b": "2"}, "finalizers": ["y", "x"]},
        "spec": {
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                }
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }
    made = merge(POD, patch)
    assert made["metadata"] == {"labels": {"a": "1", "b": "2"}, "finalizers": ["x", "y"]}
    assert made["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert made["spec"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert [v["name"] for v in made["spec"]["volumes"]] == ["data", "shm"]
    main = main_of(made)
    assert main["image"] == "edl"
    assert {e["name"]: e["value"] for e in main["env"]} == {"A": "1", "B": "3", "C": "4"}
    assert [m["mountPath"] for m in main["volumeMounts"]] == ["/data", "/dev/shm"]


def test_directives_delete_and_replace() -> None:
    env = [{"name": "A", "$patch": "delete"}]
    made = merge(POD, {"spec": {"containers": [{"name": "main", "env": env, "image": None}]}})
    assert main_of(made)["env"] == [{"name": "B", "value": "2"}]
    assert "image" not in main_of(made)
    assert "nodeSelector" not in merge(POD, {"spec": {"nodeSelector": None}})["spec"]
    labels = {"$patch": "replace", "c": "3"}
    assert merge(POD, {"metadata": {"labels": labels}})["metadata"]["labels"] == {"c": "3"}
    volumes: list[Any] = [{"$patch": "replace"}, {"name": "shm", "emptyDir": {}}]
    assert merge(POD, {"spec": {"volumes": volumes}})["spec"]["volumes"] == volumes[1:]
    data = {"name": "data", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/d"}}
    made = merge(POD, {"spec": {"volumes": [data]}})
    assert made["spec"]["volumes"] == [{"name": "data", "hostPath": {"path": "/d"}}]
    gone = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}
    assert merge(POD, gone)["metadata"]["finalizers"] == []


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "no pod; write metadata: and spec:"),
        ({"kind": "Job", "spec": {}}, "kind: Job: write the YAML of a Pod"),
        ({"spec": {}, "status": {}}, "status: unknown"),
        ({"spec": []}, "spec: write a mapping"),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy: the job sets it"),
        ({"metadata": {"name": "a"}}, "metadata.name: the job sets it"),
        ({"metadata": {"labels": {"torch-edl.dev/job": "a"}}}, "torch-edl.dev/job: the job sets"),
        ({"spec": {"containers": [{"name": "main", "args": ["a"]}]}}, "main.args: the job sets it"),
        ({"spec": {"containers": [{"name": "side"}]}}, "keeps a pod from ending; name it main"),
        ({"spec": {"containers": [{"image": "a"}]}}, "spec.containers: None: a container beside"),
        ({"spec": {"volumes": [{"emptyDir": {}}]}}, "volumes: an element has no name"),
        ({"spec": {"volumes": ["a"]}}, "volumes: 'a': write mappings"),
        ({"spec": {"$setElementOrder/volumes": []}}, "an unknown directive"),
        ({"spec": {"$patch": "remove"}}, "$patch: remove: write replace, delete or merge"),
        ({"spec": {"nodeSelector": {1: "a"}}}, "nodeSelector: the key 1 is no text"),
        ({"spec": {"priority": float("nan")}}, "priority: nan: no number that JSON knows"),
        (
            {"spec": {"containers": [{"name": "main", "env": [{"name": "TORCH_EDL_TOKEN"}]}]}},
            "env TORCH_EDL_TOKEN: the job sets it",
        ),
    ],
    ids=str,
)
def test_a_template_that_cannot_work_is_rejected_with_the_place(found: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        check(found, "--pod-template pod.yaml")
    assert message in str(raised.value)
    assert str(raised.value).startswith("--pod-template pod.yaml: ")


def test_a_file_is_read_and_a_bad_one_named(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("kind: Pod\nspec:\n  hostNetwork: true\n")
    assert load(str(file)) == {"spec": {"hostNetwork": True}}
    for text, message in (
        (b"spec: [", "no YAML: .*a pod"),
        (b"\xff\xfe\x00", "no YAML: .*a pod"),
        (b"spec: &a {x: *a}", "holds itself"),
        (b"spec: {at: 2020-01-01}", "quote it, so that YAML reads a text"),
        (b"#" * (2 << 20), "above 1 MiB; name a YAML file of a pod"),
        (b"a: !!python/object/apply:os.getpid []", "no YAML: .*a pod"),
    ):
        file.write_bytes(text)
        with pytest.raises(UsageError, match=message):
            load(str(file))
    with pytest.raises(UsageError, match=r"No such file or directory; name a YAML file of a pod"):
        load(str(tmp_path / "none.yaml"))


def _element(key: str, inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    name = st.sampled_from("ab")
    whole = st.builds(lambda found, name: {**found, key: name}, inner, name)
    return whole | st.builds(lambda name: {key: name, "$patch": "delete"}, name)


LEAF = st.dictionaries(
    st.sampled_from(["image", "labels"]), st.integers(0, 2) | st.none(), max_size=2
)


def _around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "image": st.integers(0, 2) | st.none() | inner,
            "args": st.lists(st.integers(0, 2) | LEAF, max_size=2),
            "env": st.lists(_element("name", inner), max_size=2),
            "volumeMounts": st.lists(_element("mountPath", LEAF), max_size=2),
            "finalizers": st.lists(st.sampled_from("abc"), max_size=2),
            "$patch": st.sampled_from(["merge", "replace"]),
            "$retainKeys": st.lists(st.sampled_from(["env", "image", "name"]), max_size=2),
            "$deleteFromPrimitiveList/finalizers": st.lists(st.sampled_from("ab"), max_size=2),
        },
    )


MANIFESTS = _around(_around(LEAF))


@given(MANIFESTS, MANIFESTS)
def test_a_merge_is_idempotent_and_leaves_its_arguments_alone(
    base: dict[str, Any], patch: dict[str, Any]
) -> None:
    base = merge({}, base)  # without directives
    before = json.dumps([base, patch])
    once = merge(base, patch)
    assert merge(once, patch) == once
    assert json.dumps([base, patch]) == before
    assert "$" not in json.dumps(list(_keys(once)))
    assert merge(base, {}) == base


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _keys(each)
    elif isinstance(value, list):
        for each in value:
            yield from _keys(each)


def test_the_keys_are_those_of_the_schema_of_the_api() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs torch-edl[test]")
    folder = Path(validate.__file__).parent / "kubernetes-json-schema"
    newest = folder / f"v{validate.latest_version()}-local"
    defs = json.loads((newest / "_definitions.json").read_text())["$defs"]
    keys: dict[str, str] = {}
    merged: set[str] = set()
    seen: set[str] = set()
    todo = ["io.k8s.api.core.v1.PodTemplateSpec"]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for field, of in defs[name].get("properties", {}).items():
            strategy = of.get("x-kubernetes-patch-strategy", "")
            if "merge" in strategy.split(","):
                key = of.get("x-kubernetes-patch-merge-key")
                if key:
                    assert keys.setdefault(field, key) == key
                else:
                    merged.add(field)
            todo += [
                ref.rpartition("/")[2]
                for ref in (of.get("$ref"), (of.get("items") or {}).get("$ref"))
                if ref
            ]
    assert keys == MERGE_KEYS
    assert merged == set(MERGED_VALUES)
