"""The metrics of a job, from its status. Pure.

A counter belongs to the process that counts: it begins at 0 when the process does, as Prometheus
expects. Servers and workers are labelled by their number, which no later process of the job has.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from torch_edl.wire import master_pb2 as pb

STATES = ("starting", "running", "stopping", "finishing", "finished", "failed", "stopped")
_EXITED = "exited"
_Values = Iterable[tuple[list[str], float]]


def families(status: pb.GetStatusResponse) -> Iterator[Metric]:
    """Yield the metrics of a job."""
    yield from _of_job(status)
    yield from _of_training(status)
    alive = [process for process in status.processes if process.state != _EXITED]
    present = Counter((process.role, process.state) for process in alive)
    counted: _Values = [([role, state], n) for (role, state), n in present.items()]
    yield _gauge("processes", "Processes by role and state.", counted, "role", "state")
    yield from _of_workers([process for process in alive if process.role == "worker"])
    yield from _of_servers([process for process in alive if process.role == "ps"])


def _of_job(status: pb.GetStatusResponse) -> Iterator[Metric]:
    info = {"job_name": status.job, "kind": status.kind, "strategy": status.strategy}
    yield InfoMetricFamily("torch_edl_job", "The job.", value=info)
    states: _Values = [([state], float(status.state == state)) for state in STATES]
    yield _gauge("job_state", "1 for the current state of the job.", states, "state")
    trained = status.records.done + status.rolled_back.records
    yield _counter("records", "Records done, with those that a rollback took back.", trained)
    yield _one("records_done", "Records done over all epochs.", status.records.done)
    yield _one("records_expected", "Records of all epochs; 0 if unknown.", status.records.total)
    yield _one("epoch", "Epoch of the first task that is not done, from 0.", status.epoch)
    tasks: _Values = [
        (["todo"], status.tasks.todo),
        (["doing"], status.tasks.doing),
        (["done"], status.tasks.done),
    ]
    yield _gauge("tasks", "Tasks by state.", tasks, "state")
    yield _one("workers_wanted", "Requested number of workers.", status.workers_wanted)
    yield _one("servers_wanted", "Requested number of servers.", status.servers_wanted)
    losses: _Values = [([each.role], each.losses) for each in status.losses]
    yield _counters("losses", "Processes that were killed, crashed or fell silent.", losses, "role")
    happened: _Values = [([e.kind, e.level], e.count) for e in status.events_count]
    text = "Events of the job, by kind and level."
    yield _counters("events", text, happened, "kind", "level")
    text = "Time without a step after losses, moves and restarts of the master."
    yield _counter("stalled_seconds", text, status.stalled_s)
    yield _counter(
        "rollbacks", "Restores of the model from a checkpoint.", status.rolled_back.times
    )
    text = "Records that a rollback took back."
    yield _counter("records_rolled_back", text, status.rolled_back.records)
    text = "Updates lost in damaged journals."
    yield _counter("updates_lost", text, status.updates_lost)


def _of_training(status: pb.GetStatusResponse) -> Iterator[Metric]:
    yield _counter("steps", "Minibatches done.", status.steps)
    if status.steps and status.kind != "script":  # a script logs its loss itself
        yield _one("loss", "Mean training loss over the workers.", status.loss)
    logged: _Values = [([name], value) for name, value in sorted(status.logged.items())]
    yield _gauge("logged", "Values of job.log(), means over the workers.", logged, "name")
    yield _counter("evaluations", "Evaluations of the model.", len(status.evaluations))
    if status.evaluations:
        newest = max(status.evaluations, key=lambda each: each.steps)
        figures: _Values = [([name], value) for name, value in sorted(newest.metrics.items())]
        yield _gauge("evaluation", "Metrics of the newest evaluation.", figures, "metric")
    yield _counter("damaged_records", "Damaged records that were skipped.", status.damaged)
    yield _counter("nan_steps", "Minibatches skipped for NaN or infinity.", status.nan_steps)


def _of_workers(workers: Iterable[pb.ProcessStatus]) -> Iterator[Metric]:
    workers = list(workers)

    def each(field: str) -> _Values:
        return [([str(worker.id)], getattr(worker, field)) for worker in workers]

    text = "Records that the worker trained since it started."
    yield _counters("worker_records", text, each("records"), "worker")
    yield _gauge("worker_leases", "Tasks that the worker holds.", each("leases"), "worker")
    text = "Age of the oldest lease of the worker; 0 without one."
    yield _gauge("worker_oldest_lease_seconds", text, each("lease_s"), "worker")
    text = "Age of the oldest lease of the job; 0 without one."
    yield _one("oldest_lease_seconds", text, max((worker.lease_s for worker in workers), default=0))
    text = "Time without progress of a worker that holds tasks."
    yield _gauge("worker_idle_seconds", text, each("idle_s"), "worker")
    text = "Rate of a slow worker as a part of the median rate; 0: it is not slow."
    yield _gauge("worker_slow", text, each("slow"), "worker")
    spent: _Values = [
        ([str(worker.id), activity], seconds)
        for worker in workers
        for activity, seconds in sorted(worker.seconds.items())
    ]
    text = "Time of the training loop by activity."
    yield _counters("worker_activity_seconds", text, spent, "worker", "activity")


def _of_servers(servers: Iterable[pb.ProcessStatus]) -> Iterator[Metric]:
    servers = list(servers)

    def each(field: str) -> _Values:
        return [([str(server.id)], getattr(server, field)) for server in servers]

    text = "Updates that the shard has had, earlier servers included."
    yield _counters("server_updates", text, each("updates"), "server")
    yield _gauge("server_rows", "Rows of all tables of the server.", each("rows"), "server")
    yield _gauge("server_bytes", "Size of all tables of the server.", each("bytes"), "server")
    text = "Rate of a slow server as a part of the median rate; 0: it is not slow."
    yield _gauge("server_slow", text, each("slow"), "server")
    problems: _Values = [([str(server.id)], float(bool(server.problem))) for server in servers]
    yield _gauge("server_rejects", "1 if the server rejects pushes.", problems, "server")
    counts = [(str(s.id), s.counts) for s in servers if s.HasField("counts")]
    lags: _Values = [([id], of.journal_lag_s) for id, of in counts]
    text = "Age of the oldest change that is not durable yet."
    yield _gauge("server_journal_lag_seconds", text, lags, "server")
    sizes: _Values = [([id], of.journal_bytes) for id, of in counts]
    text = "Size of the changes since the newest snapshot."
    yield _gauge("server_journal_bytes", text, sizes, "server")
    for name, text, field in (
        ("server_pull_seconds", "Duration of pulls.", "pull_s"),
        ("server_push_seconds", "Duration of pushes until they are durable.", "push_s"),
        ("server_push_staleness", "Updates between pull and push of a minibatch.", "staleness"),
    ):
        histogram = HistogramMetricFamily(f"torch_edl_{name}", text, labels=["server"])
        for id, of in counts:
            _add(histogram, id, getattr(of, field))
        yield histogram
    tables = [(id, table) for id, of in counts for table in of.tables]
    rows: _Values = [([id, table.name], table.rows) for id, table in tables]
    yield _gauge("table_rows", "Rows of the table.", rows, "server", "table")
    held: _Values = [([id, table.name], table.bytes) for id, table in tables]
    yield _gauge("table_bytes", "Size of the table.", held, "server", "table")
    gone: _Values = [([id, table.name], table.evicted) for id, table in tables]
    text = "Rows and counted ids that the table evicted."
    yield _counters("table_evictions", text, gone, "server", "table")


def _add(family: HistogramMetricFamily, id: str, histogram: pb.Histogram) -> None:
    bounds = [*map(float, histogram.bounds), math.inf]
    names = ["+Inf" if bound == math.inf else repr(bound) for bound in bounds]
    buckets = list(zip(names, map(float, accumulate(histogram.counts)), strict=False))
    if buckets:
        family.add_metric([id], buckets, sum_value=histogram.sum)


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"torch_edl_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"torch_edl_{name}", text, value=value)


def _gauge(name: str, text: str, values: _Values, *labels: str) -> Metric:
    family = GaugeMetricFamily(f"torch_edl_{name}", text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


def _counters(name: str, text: str, values: _Values, *labels: str) -> Metric:
    family = CounterMetricFamily(f"torch_edl_{name}", text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family
