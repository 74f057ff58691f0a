"""A training script for pods: torchrun's command line, and what agents get of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_edl.cli.script_pods import job_of
from torch_edl.cli.torchrun_arguments import parse
from torch_edl.config import JobConfig
from torch_edl.errors import UsageError

PODS = "--platform kubernetes --image edl --namespace team"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text("import torch_edl\njob = torch_edl.init()\n")
    return file


def job(words: str, script: Path, *rest: str) -> JobConfig:
    given = [*PODS.split(), *words.split(), str(script), *rest]
    return job_of(parse(given), given)


def test_a_pod_has_the_workers_of_a_machine(script: Path) -> None:
    found = job("--nnodes 2:4 --nproc-per-node 3 --max-restarts 2", script, "--nnodes", "9")
    assert (found.kind, found.cluster.min_workers, found.cluster.max_workers) == ("script", 6, 12)
    assert found.kubernetes.processes_per_pod == 3
    assert found.model_args == ("--nnodes", "9")
    agent = found.kubernetes.agent
    # The last word counts, and nothing of the cluster is among them.
    assert agent[: agent.index("--max-restarts")].count("--nproc-per-node") == 1
    assert "--image" not in agent
    assert "edl" not in agent
    last = parse([*agent, str(script)])
    assert (last.nnodes, last.nproc_per_node, last.max_restarts) == ("2:10000", "3", 2)
    assert float(dict([last.rdzv_conf.split("=")])["join_timeout"]) > 86400


def test_workers_without_machines_have_a_pod_each(script: Path) -> None:
    found = job("--workers 2:5 --seed 7 --rdzv-conf join_timeout=60", script)
    assert (found.cluster.min_workers, found.cluster.max_workers) == (2, 5)
    assert found.kubernetes.processes_per_pod == 1
    assert found.cluster.join_timeout_s == 60
    last = parse([*found.kubernetes.agent, str(script)])
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
