"""``torch-edl audit`` of a job on a cluster, whose ledger is not on this machine."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("kubernetes", reason="needs torch-edl[kubernetes]")

from tests.schemas import require_valid
from tests.unit.plugins.kubernetes.jobs import NO_ROOM, start
from torch_edl.cli.__main__ import main
from torch_edl.plugins.kubernetes.cluster.api import Api


def test_without_a_state_claim_nothing_is_proven(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    start(api, **NO_ROOM)
    words = ["audit", "ctr", "--namespace", api.namespace]
    assert main(words) == 1
    assert capsys.readouterr().out == (
        "ctr: not proven, for the reasons below\n"
        "  not proven: the job has no --state-claim, so its ledger is in the pod of its master and "
        "is lost with that pod; to keep the ledger, start the next job with --state-claim NAME\n"
    )
    assert main([*words, "--json", "--tasks"]) == 1
    report = json.loads(capsys.readouterr().out)
    require_valid("audit", report)
    assert report["verdict"] == "unproven"


def test_with_a_state_claim_the_place_of_the_ledger_is_named(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    start(api, state_claim="state", **NO_ROOM)
    assert main(["audit", "ctr", "--namespace", api.namespace]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "ctr: the ledger is on the claim state (--state-claim)" in said
    assert "set TORCH_EDL_HOME to its folder" in said


def test_a_job_that_does_not_exist_is_named(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "ctr", "--namespace", api.namespace]) == 2
    assert f"no job in namespace {api.namespace}" in " ".join(capsys.readouterr().err.split())
