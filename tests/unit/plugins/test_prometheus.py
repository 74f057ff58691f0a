"""Metrics of a job, and the files for Prometheus and Grafana that use them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.debian_package import require_package
from tests.waiting import HANG_S
from torch_edl.errors import UsageError
from torch_edl.plugins.prometheus import exporter, families
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire.endpoint import free_port

ASSETS = Path(families.__file__).with_name("assets")
AGE = "torch_edl_worker_oldest_lease_seconds"


def status(workers: int = 2, servers: int = 2) -> pb.GetStatusResponse:
    histogram = pb.Histogram(bounds=[0.5, 1.0], counts=[3, 2, 1], sum=7.5)
    made = pb.GetStatusResponse(
        job="digits",
        kind="train",
        state="running",
        records={"done": 90},
        rolled_back={"records": 10},
        steps=9,
        loss=0.25,
        logged={"accuracy": 0.5},
        losses=[pb.LossCounts(role="ps", losses=2), pb.LossCounts(role="worker")],
        stalled_s=1.5,
    )
    made.events_count.add(kind="worker_lost", level="warning", count=3)
    made.evaluations.add(steps=4, metrics={"auc": 0.6})
    made.evaluations.add(steps=8, metrics={"auc": 0.7})
    for id in range(workers):
        made.processes.add(
            role="worker",
            id=id,
            state="running",
            records=50,
            leases=2,
            idle_s=0.5,
            lease_s=3.0 + id,
            seconds={"pull": 1.5},
        )
    made.processes.add(role="worker", id=workers, state="exited", exit="signal 9")
    tables = [pb.TableCounts(name='a"b', rows=5, bytes=80, evicted=1)]
    for id in range(servers):
        counts = pb.ServerCounts(pull_s=histogram, push_s=histogram, staleness=histogram)
        counts.tables.extend(tables)
        made.processes.add(role="ps", id=id, state="running", updates=9, counts=counts)
    made.processes.add(role="ps", id=servers, state="starting")
    return made


def scrape(status: pb.GetStatusResponse) -> str:
    return generate_latest(exporter.registry(lambda: status)).decode()


def test_the_numbers_of_the_status_are_served() -> None:
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(scrape(status()))
        for sample in family.samples
    }
    assert found["torch_edl_records_total",] == 100
    assert found["torch_edl_losses_total", "ps"] == 2
    assert found["torch_edl_events_total", "warning", "worker_lost"] == 3
    assert found["torch_edl_stalled_seconds_total",] == 1.5
    assert found["torch_edl_evaluation", "auc"] == 0.7
    assert found["torch_edl_processes", "running", "worker"] == 2
    assert ("torch_edl_worker_records_total", "2") not in found
    assert found["torch_edl_worker_activity_seconds_total", "1", "pull"] == 1.5
    assert found["torch_edl_worker_oldest_lease_seconds", "0"] == 3
    assert found["torch_edl_oldest_lease_seconds",] == 4
    buckets = [found["torch_edl_server_pull_seconds_bucket", *of] for of in
               (("0.5", "1"), ("1", "1.0"), ("+Inf", "1"))]  # fmt: skip
    assert buckets == [3, 5, 6]
    assert found["torch_edl_server_pull_seconds_count", "1"] == 6
    assert found["torch_edl_table_evictions_total", "0", 'a"b'] == 1


def test_a_thousand_workers_are_served_in_time() -> None:
    large = status(workers=1000, servers=100)
    took_s = []
    for _ in range(3):
        began = time.thread_time()  # earlier tests may have left threads that work
        text = scrape(large)
        took_s.append(time.thread_time() - began)
    assert min(took_s) < 0.2
    assert text.count("torch_edl_worker_records_total{") == 1000


def test_promtool_accepts_metrics_and_alerts() -> None:
    require_package("prometheus", lambda: shutil.which("promtool") is not None)
    for words, text in (["metrics"], scrape(status())), (["rules", ASSETS / "alerts.yaml"], ""):
        told = subprocess.run(
            ["promtool", "check", *words], input=text, capture_output=True, text=True
        )
        assert told.returncode == 0, told.stdout + told.stderr


def test_an_alert_names_the_worker_whose_lease_is_old(tmp_path: Path) -> None:
    require_package("prometheus", lambda: shutil.which("promtool") is not None)
    labels = 'instance="i", job="j"'
    fires = {"exp_labels": {"severity": "warning", "instance": "i", "job": "j", "worker": "1"}}
    tests = {
        "rule_files": [str(ASSETS / "alerts.yaml")],
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    # Worker 0 completes a task every 30 s, worker 1 none.
                    {"series": f'{AGE}{{worker="0", {labels}}}', "values": "0 15 " * 60},
                    {"series": f'{AGE}{{worker="1", {labels}}}', "values": "0+15x120"},
                ],
                "alert_rule_test": [
                    {"eval_time": "5m", "alertname": "TorchEdlOldLease", "exp_alerts": []},
                    {"eval_time": "7m", "alertname": "TorchEdlOldLease", "exp_alerts": [fires]},
                ],
            }
        ],
    }
    # Annotations are compared, too.
    (rule,) = (
        rule
        for group in yaml.safe_load((ASSETS / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
        if rule["alert"] == "TorchEdlOldLease"
    )
    fires["exp_annotations"] = {
        name: text.replace("{{ $labels.worker }}", "1").replace("{{ $labels.instance }}", "i")
        for name, text in rule["annotations"].items()
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    told = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "tests.yaml"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("file", ["alerts.yaml", "grafana.json"])
def test_files_name_only_metrics_that_exist(file: str) -> None:
    text = (ASSETS / file).read_text()
    if file == "grafana.json":
        text = json.dumps([panel["targets"] for panel in json.loads(text)["panels"]])
    served = scrape(status())
    named = set(re.findall(r"torch_edl_\w+", text))
    assert len(named) > 4
    missing = [n for n in named if f"\n{n}{{" not in served and f"\n{n} " not in served]
    assert not missing


def test_a_port_is_served_until_the_end_and_rejected_if_in_use() -> None:
    close = exporter.serve("127.0.0.1", 0, status)
    close()
    port = free_port()
    in_use = rf"--metrics-port: 127.0.0.1:{port} is not available"
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(UsageError, match=in_use),
    ):
        exporter.serve("127.0.0.1", port, status)
    close = exporter.serve("127.0.0.1", port, status)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_S) as answer:
            assert b"torch_edl_records_total 100.0" in answer.read()
    finally:
        close()
