"""The ``state_dict`` of a model whose values are on servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from torch_edl.engine.servers.dense import DenseTensor
from torch_edl.nn import table_state
from torch_edl.nn.embedding import Table
from torch_edl.ps_client.client import PsClient


def gathered(
    client: PsClient, dense: Mapping[str, DenseTensor], tables: Iterable[Table]
) -> dict[str, torch.Tensor]:
    """The whole model as it is on the servers now; that of this process stays as it is.

    Raises:
        ServersLostError: the values cannot be had.
    """
    state: dict[str, torch.Tensor] = {}
    pulled = client.pull([]).wait()
    for segments, flat in zip(client.layout, pulled.dense, strict=True):
        for segment in segments:
            assert flat is not None
            each = dense[segment.name]
            value = flat[segment.start : segment.start + segment.size].copy()
            tensor = torch.from_numpy(value).view(segment.shape).to(each.tensor.dtype)
            state |= dict.fromkeys([segment.name, *each.aliases], tensor)
    for name, each in dense.items():
        if each.is_exact:
            tensor = each.tensor.detach().to("cpu", copy=True)
            state |= dict.fromkeys([name, *each.aliases], tensor)
    for table in {t.table: t for t in tables}.values():
        name, dim, paths = table.table, table.embedding_dim, table.modules_of_table
        if table.num_embeddings is None:
            state |= table_state.of_rows(paths, *client.rows(name, dim))
        else:
            weight = client.weight(name, table.num_embeddings, dim)
            state |= table_state.of_weight(paths, weight)
    return state
