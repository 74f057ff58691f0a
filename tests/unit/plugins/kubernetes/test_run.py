"""A job for a cluster: what is checked before anything is asked of the cluster, and the YAML of a
dry run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plugins.kubernetes.scripted_api import kubeconfig
from torch_edl.cli.__main__ import main
from torch_edl.config import JobConfig
from torch_edl.plugins import prometheus
from torch_edl.plugins.kubernetes import names

yaml = pytest.importorskip("yaml", reason="needs torch-edl[kubernetes]")

ASSETS = Path(prometheus.__file__).with_name("assets")
MODEL = "import torch\nimport net\nmodel = loss = optimizer = feed = eval_metrics_fn = print\n"
RUN = [
    "run", "model.py", "--platform", "kubernetes", "--image", "edl", "--data", "/data/*.csv",
    "--volume", "claim=data,path=/data", "--job-name", "clicks", "--namespace", "team",
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file with a module, and a kubeconfig of a cluster that does not answer."""
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "net.py").write_text("WIDTH = 3\n")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dry_run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, Any]]:
    pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")
    assert main([*RUN, "--dry-run", *words]) == 0
    text = capsys.readouterr().out
    return text, {each["kind"]: each for each in yaml.safe_load_all(text)}


def test_a_dry_run_needs_no_kubeconfig(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")
    words = [*RUN[:-2], "--dry-run"]  # without --namespace
    assert main(words) == 0
    assert "namespace: ml" in capsys.readouterr().out
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")
    assert main(words) == 0
    assert "namespace: default" in capsys.readouterr().out
    assert main([*words, "--context", "here"]) == 2
    assert "--context here: no cluster" in capsys.readouterr().err


def test_a_dry_run_prints_valid_objects_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs torch-edl[test]")
    text, objects = dry_run(capsys, "--output", "/data/out", "--", "--width", "3")
    for each in objects.values():
        validate.validate(each, validate.latest_version(), strict=True)
        assert each["metadata"]["namespace"] == "team"
    assert "data" not in objects["Secret"]
    assert "stringData" not in objects["Secret"]
    assert "t0ken" not in text
    assert f"kubectl patch secret --namespace team {names.token('clicks')}" in text
    files = objects["ConfigMap"]["data"]
    config = JobConfig.from_json(files[names.CONFIG_KEY])
    assert config.model_file == f"{names.CODE}/model.py"
    assert config.model_args == ("--width", "3")
    assert config.checkpoint.output == "/data/out"
    assert [files[names.code_key(place)] for place in range(2)] == [MODEL, "WIDTH = 3\n"]


def test_a_dry_run_of_a_job_with_metrics_has_a_monitor_of_its_master(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, objects = dry_run(capsys)
    # A plain apply would copy the code of the job into an annotation, which has a smaller limit.
    assert "#   kubectl apply --server-side --namespace team -f FILE" in text
    assert "PodMonitor" not in text
    text, objects = dry_run(capsys, "--metrics-port", "9400")
    monitor = objects.pop("PodMonitor")
    whole = yaml.safe_load((ASSETS / "podmonitor.yaml").read_text())
    assert monitor["apiVersion"] == whole["apiVersion"]
    assert monitor["metadata"]["namespace"] == "team"
    assert monitor["spec"]["podMetricsEndpoints"] == whole["spec"]["podMetricsEndpoints"]
    pod = objects["Job"]["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (ports,) = (each["ports"] for each in pod["spec"]["containers"])
    assert endpoint["port"] in [each["name"] for each in ports]
    name = monitor["metadata"]["name"]
    assert f"#   kubectl delete --namespace team podmonitor {name}\n" in text
    deletes = next(line for line in text.splitlines() if " -l torch-edl.dev/job=" in line)
    assert "podmonitor" not in deletes, "a cluster without the operator would delete nothing"


def test_the_pod_template_and_the_namespace_of_the_context(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "pod.yaml").write_text("spec: {dnsPolicy: None, hostNetwork: true}\n")
    (folder / "job.yaml").write_text("pod-template: pod.yaml\nvolume: [{claim: b, path: /b}]\n")
    pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")
    words = ["run", "model.py", "--platform", "kubernetes", "--image", "edl", "--data", "/b/a.csv"]
    assert main([*words, "--config", "job.yaml", "--dry-run"]) == 0
    objects = {each["kind"]: each for each in yaml.safe_load_all(capsys.readouterr().out)}
    spec = objects["Job"]["spec"]["template"]["spec"]
    assert spec["hostNetwork"] is True
    assert {"name": "volume-0", "persistentVolumeClaim": {"claimName": "b"}} in spec["volumes"]
    assert objects["Job"]["metadata"]["namespace"] == "ml"


def test_the_template_of_a_role(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "gpu.yaml").write_text("spec: {nodeSelector: {pool: gpu}}\n")
    (folder / "small.yaml").write_text("spec: {nodeSelector: {pool: small}}\n")
    words = ["--worker-template", "gpu.yaml", "--master-template", "small.yaml"]
    _, objects = dry_run(capsys, *words)
    assert objects["Job"]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "small"}
    config = JobConfig.from_json(objects["ConfigMap"]["data"][names.CONFIG_KEY])
    assert [config.platform_config.templates(role)[1] for role in ("worker", "ps")] == [
        {"spec": {"nodeSelector": {"pool": "gpu"}}}, {},
    ]  # fmt: skip


def test_code_of_the_image_is_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    _, objects = dry_run(capsys, "--code-in-image", "/app")
    assert list(objects["ConfigMap"]["data"]) == [names.CONFIG_KEY]
    config = JobConfig.from_json(objects["ConfigMap"]["data"][names.CONFIG_KEY])
    assert config.model_file == "/app/model.py"


def test_data_behind_a_url_needs_no_volume(capsys: pytest.CaptureFixture[str]) -> None:
    _, objects = dry_run(capsys, "--data", "s3://clicks/day=*/*.parquet")
    config = JobConfig.from_json(objects["ConfigMap"]["data"][names.CONFIG_KEY])
    assert config.data.train[-1] == "s3://clicks/day=*/*.parquet"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "clicks.csv"], "--data clicks.csv: no absolute path, and this folder is not"),
        (["--output", "out"], "--output out: no absolute path"),
        (["--checkpoint-dir", "~/ckpt"], "--checkpoint-dir ~/ckpt: no absolute path"),
        (["--output", "/out"], "--output /out: no volume is mounted there"),
        (["--code-in-image", "app"], "--code-in-image app: write an absolute path"),
        (["--pod-template", "none.yaml"], "none.yaml: No such file or directory"),
        (["--ps-template", "none.yaml"], "error: --ps-template"),
        (["--worker-resources", "cpu=many"], "--worker-resources cpu=many: 'many' is no quantity"),
        (
            ["--platform", "local"],
            "--platform local: --image is an option of kubernetes",
        ),
        (["--summary", "net.py/x"], "net.py is a file"),
        (["--load", "old/model"], "--load old/model: no absolute path"),
        (["--load", "old", "--dry-run"], "--load old: a dry run asks no cluster"),
        (["predict", "--output", "p.csv"], "--output p.csv: no absolute path"),
        (["predict", "--output", "/data/p.txt"], "the name must end in .parquet or .csv or .npz"),
        (["predict", "--output", "/p.csv"], "--output /p.csv: no volume is mounted there"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "predict":
        words = ["predict", *RUN[1:], "--from", "/data/model", *words[1:]]
    else:
        words = [*RUN, *words]
    assert main(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_image_and_the_data_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "model.py", "--platform", "kubernetes", "--data", "/a"]) == 2
    assert "the image of the pods is missing; add --image IMAGE" in capsys.readouterr().err
    assert main(["run", "model.py", "--platform", "kubernetes", "--image", "edl"]) == 2
    assert "--data: missing" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")
    for words in (RUN, ["status", "--namespace", "team"], ["list", "--platform", "kubernetes"],
                  ["logs", "clicks", "--context", "here"], ["attach", "clicks"],
                  ["stop", "clicks", "--platform", "kubernetes"]):  # fmt: skip
        assert main(words) == 1
        error = capsys.readouterr().err
        assert "no answer from https://127.0.0.1:1" in error
        assert error.count("\n") == 1
    assert main(["status", "--context", "nowhere"]) == 2
    assert "--context nowhere" in capsys.readouterr().err


def test_local_and_cluster_at_once_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--platform", "local", "--namespace", "team"]) == 2
    assert (
        "--platform local: --namespace is for --platform kubernetes; leave it out"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("words", ["--help", "run --help", "list", "status --help"])
def test_a_local_command_does_not_import_the_client(words: str, tmp_path: Path) -> None:
    code = (
        "import sys; from torch_edl.cli.__main__ import main; main(sys.argv[1:]);"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        capture_output=True, text=True, check=True, env={"TORCH_EDL_HOME": str(tmp_path)},
    )  # fmt: skip
    assert not {"kubernetes", "yaml", "torch"} & set(done.stderr.split())
    assert ("grpc" in done.stderr.split()) == (words == "list")
