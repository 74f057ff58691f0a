"""A real Prometheus scrapes a job, sees a worker that holds its task for long, and raises an alert
for a killed server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.debian_package import require_package
from tests.faults.conftest import TASKS, ModelJob
from tests.waiting import HANG_S, wait_for
from torch_edl.plugins import prometheus
from torch_edl.wire.endpoint import free_port

_ALERTS = Path(prometheus.__file__).with_name("assets") / "alerts.yaml"
_CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: torch-edl
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def test_an_alert_fires_on_a_killed_server(
    start_job: Callable[..., ModelJob], tmp_path: Path
) -> None:
    require_package("prometheus", lambda: shutil.which("prometheus") is not None)
    port, own = free_port(), free_port()
    flags = ["--workers", "2", "--ps", "2", "--durability", "replica"]
    job = start_job(1000, *flags, *TASKS, "--metrics-port", str(port))
    config = tmp_path / "prometheus.yml"
    config.write_text(_CONFIG.format(rules=_ALERTS, port=port))
    words = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    words.append(f"--web.listen-address=127.0.0.1:{own}")

    def ask(query: str) -> list[Any]:
        url = f"http://127.0.0.1:{own}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=HANG_S) as answer:
                found: list[Any] = json.load(answer)["data"]["result"]
        except OSError:  # it starts
            return []
        return found

    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        wait_for(lambda: ask("torch_edl_server_push_seconds_count > 0"), "pushes")
        wait_for(lambda: ask('torch_edl_losses_total{role="ps"} == 0'), "no loss")
        assert not ask('ALERTS{alertstate="firing"}')
        # A worker waits for the last record.
        oldest = "max by (instance) (torch_edl_worker_oldest_lease_seconds) > 3"
        query = f"({oldest}) == on (instance) torch_edl_oldest_lease_seconds"
        wait_for(lambda: ask(query), "an old lease")
        assert any(p.leases and p.lease_s > 3 for p in job.status().processes)
        os.kill(job.pids("ps")[0], 9)
        wait_for(lambda: ask('ALERTS{alertname="TorchEdlServerLost",alertstate="firing"}'), "alert")
        job.end_well()
    finally:
        server.terminate()
        server.wait()
