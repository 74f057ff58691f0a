"""The description of a torch model from which the master chooses a strategy."""

from __future__ import annotations

import torch
from torch import nn

from torch_edl.errors import UnsupportedOptimizerError
from torch_edl.nn.embedding import Table
from torch_edl.optim import optimizer_config
from torch_edl.wire import master_pb2 as pb


def report_model(module: nn.Module, optimizer: torch.optim.Optimizer) -> pb.ReportModelRequest:
    """Return the description of a model: its optimizer, its size and its embeddings."""
    report = pb.ReportModelRequest(
        optimizer=type(optimizer).__name__,
        dense_elements=sum(p.numel() for p in module.parameters()),
    )
    try:
        optimizer_config(optimizer)
    except UnsupportedOptimizerError as error:
        report.optimizer_error = str(error)
    for name, part in module.named_modules():
        if isinstance(part, Table | nn.Embedding | nn.EmbeddingBag):
            report.embeddings.add(
                name=name,
                num_embeddings=part.num_embeddings or 0,
                dim=part.embedding_dim,
                dynamic=isinstance(part, Table),
            )
    return report
