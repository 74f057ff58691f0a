"""A training script for pods: torchrun's command line, and what nodes get of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.plugins.kubernetes.scripted_api import kubeconfig
from torch_edl.cli.__main__ import main
from torch_edl.cli.arguments.script_arguments import parse
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes import names
from torch_edl.plugins.kubernetes.client.script import job_of

PODS = "--platform kubernetes --image edl --namespace team"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text("import torch_edl\njob = torch_edl.init()\n")
    return file


def job(words: str, script: Path, *rest: str) -> JobConfig:
    given = [*PODS.split(), *words.split(), str(script), *rest]
    return job_of(parse(given))


def test_a_pod_has_the_workers_of_a_machine(script: Path) -> None:
    found = job("--nnodes 2:4 --nproc-per-node 3 --max-restarts 2", script, "--nnodes", "9")
    assert (found.kind, found.cluster.min_workers, found.cluster.max_workers) == ("script", 6, 12)
    assert found.platform_config.processes_per_pod == 3
    assert found.model_args == ("--nnodes", "9")
    words = found.platform_config.torchrun
    # The last word counts, and nothing of the cluster is among them.
    assert words[: words.index("--max-restarts")].count("--nproc-per-node") == 1
    assert "--image" not in words
    assert "edl" not in words
    last = parse([*words, str(script)])
    assert (last.nnodes, last.nproc_per_node, last.max_restarts) == ("2:3333", "3", 2)
    launch = found.launch
    assert launch is not None
    assert (launch.min_nodes, launch.max_nodes, launch.per_node) == (2, 3333, 3)
    assert (launch.max_restarts, launch.grace_s) == (2, found.cluster.grace_s)
    assert float(dict([last.rdzv_conf.split("=")])["join_timeout"]) > 86400


def test_the_values_of_an_option_end_at_the_next_option(script: Path) -> None:
    found = job("--volume claim=a,path=/a claim=b,path=/b --workers 2", script, "--volume", "c")
    assert found.platform_config.volume == ("claim=a,path=/a", "claim=b,path=/b")
    assert found.model_file == str(script)
    assert found.model_args == ("--volume", "c")


def test_workers_without_machines_have_a_pod_each(script: Path) -> None:
    found = job("--workers 2:5 --seed 7 --rdzv-conf join_timeout=60", script)
    assert (found.cluster.min_workers, found.cluster.max_workers) == (2, 5)
    assert found.platform_config.processes_per_pod == 1
    assert found.cluster.join_timeout_s == 60
    last = parse([*found.platform_config.torchrun, str(script)])
    assert (last.nnodes, last.seed, last.workers) == ("2:10000", 7, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--standalone", "--standalone: not for pods"),
        ("--rdzv-endpoint here:1", "--rdzv-endpoint: not for pods"),
        ("--nproc-per-node gpu", "--nproc-per-node gpu: the machine of a pod is not known"),
        ("--nproc-per-node 0", "--nproc-per-node 0: "),
        ("--nnodes 1:x", "--nnodes 1:x: write a number of pods"),
        ("--nnodes 4:2", "8:2|minimum|least|4"),
    ],
)
def test_what_cannot_work_in_pods_is_refused(script: Path, words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job(words, script)


def test_a_script_without_torch_edl_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text("print('train')\n")
    with pytest.raises(UsageError, match="does not use torch_edl"):
        job("", plain)


def run(*words: str) -> int:
    return main(["run", *PODS.split(), *words])


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubeconfig of a cluster that does not answer."""
    pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    monkeypatch.chdir(tmp_path)


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], JobConfig]:
    """The objects of a dry run, and the configuration that is among them."""
    import yaml

    found = {each["kind"]: each for each in yaml.safe_load_all(capsys.readouterr().out)}
    return found, JobConfig.from_json(found["ConfigMap"]["data"][names.CONFIG_KEY])


def test_a_dry_run_prints_the_objects_of_a_script(
    script: Path, cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs torch-edl[test]")
    assert run("--nnodes", "1:2", "--dry-run", "train.py", "/data") == 0
    objects, config = printed(capsys)
    for each in objects.values():
        validate.validate(each, validate.latest_version(), strict=True)
    assert config.model_file == f"{names.CODE}/train.py"
    assert config.model_args == ("/data",)
    assert "--dry-run" not in config.platform_config.torchrun
    assert run("--dry-run", "train.py", "/data", "--dry-run") == 0
    assert printed(capsys)[1].model_args == ("/data", "--dry-run"), "that of the script"


def test_the_options_of_a_script_are_in_a_file(
    script: Path, cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.yaml").write_text(
        "nnodes: 1:3\nnproc-per-node: 2\nvolume: [{claim: data, path: /data}]\nps: 2\n"
    )
    words = ("--config", "job.yaml", "--dry-run", "--ps", "4", "train.py", "--config", "own.yaml")
    assert run(*words) == 0
    _, config = printed(capsys)
    assert (config.cluster.max_workers, config.platform_config.processes_per_pod) == (6, 2)
    assert config.cluster.servers == 4, "the command line counts"
    assert config.platform_config.volume == ("claim=data,path=/data",)
    assert config.model_args == ("--config", "own.yaml"), "that of the script"
    last = parse([*config.platform_config.torchrun, str(script)])
    assert (last.nnodes, last.nproc_per_node) == ("1:5000", "2")
    Path("job.yaml").write_text("nproc-per-node: gpu\n")
    assert run("--config=job.yaml", "--dry-run", "train.py") == 2
    assert "job.yaml: nproc-per-node: --nproc-per-node gpu" in capsys.readouterr().err
    Path("job.yaml").write_text("nprocs: 2\n")
    assert run("--config=job.yaml", "--dry-run", "train.py") == 2
    assert "job.yaml: nprocs: no such option" in capsys.readouterr().err


def test_a_module_is_sent_with_the_packages_that_it_is_in(
    tmp_path: Path, cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {
        "work/__init__.py": "from work import shared\n",
        "work/shared.py": "",
        "work/jobs/train.py": "import torch_edl\nfrom ..net import Net\n",
        "work/net.py": "class Net: ...\n",
        "work/other.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert run("--dry-run", "--workers", "2", "-m", "work.jobs.train", "--lr", "1") == 0
    _, config = printed(capsys)
    assert config.is_module
    assert config.model_file == "work.jobs.train"
    assert config.name.startswith("train-")
    assert set(config.platform_config.code) == {
        "work/jobs/train.py", "work/__init__.py", "work/shared.py", "work/net.py"
    }  # fmt: skip
    last = parse([*config.platform_config.torchrun, config.model_file, *config.model_args])
    assert (last.module, last.training_script, last.training_script_args) == (
        True, "work.jobs.train", ["--lr", "1"]
    )  # fmt: skip
    assert run("--dry-run", "-m", "work.none") == 2
    assert "-m work.none: no such module below" in capsys.readouterr().err
    assert run("--dry-run", "--code-in-image", "/app", "-m", "work.none") == 0
    _, config = printed(capsys)
    assert (config.model_file, config.platform_config.code) == ("work.none", ())
