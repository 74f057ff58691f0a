"""The ids with the most updates, in the counters of a server."""

from __future__ import annotations

import numpy as np

from torch_edl.ps_server.frequent_ids import MOST, FrequentIds
from torch_edl.tables.optimizers import Optimizers
from torch_edl.tables.table import EmbeddingTable, RowBlock, update
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps


def _table() -> EmbeddingTable:
    config = ps.OptimizerConfig(kind="sgd", groups=[ps.ParamGroup(hyper={"lr": 1.0})])
    info = ps.EmbeddingTableInfo(name="t", dim=2, initializer=ps.Initializer(kind="zeros"))
    return EmbeddingTable(info, 0, Optimizers.from_proto(config))


def _train(table: EmbeddingTable, *ids: int) -> None:
    block = RowBlock(np.zeros((len(ids), 2), np.float32))
    block.add(np.arange(len(ids)), np.ones((len(ids), 2), np.float32))
    update(table, [(np.array(ids), block)], [1.0])


def test_a_walk_is_done_while_somebody_looks() -> None:
    now = [100.0]
    table, probe = _table(), FrequentIds(clock=lambda: now[0])
    for n in range(1, 31):
        _train(table, *range(n))
    found = _asked(probe, table)
    assert list(found.frequent_ids) == list(range(MOST))
    assert list(found.frequent_updates) == list(range(30, 30 - MOST, -1))
    assert found.updates == 30
    _train(table, 0)
    assert _asked(probe, table).frequent_updates[0] == 30  # within ten seconds
    now[0] += 11
    assert _asked(probe, table).frequent_updates[0] == 31


def _asked(probe: FrequentIds, table: EmbeddingTable) -> pb.TableCounts:
    counts = pb.ServerCounts(tables=[pb.TableCounts(name="t"), pb.TableCounts(name="new")])
    probe({"t": table}, counts)
    probe.wait()
    counts = pb.ServerCounts(tables=[pb.TableCounts(name="t"), pb.TableCounts(name="new")])
    probe({"t": table}, counts)
    assert not counts.tables[1].frequent_ids
    return counts.tables[0]
