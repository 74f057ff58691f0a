"""The layout of tables in a ``state_dict``, wherever their rows are: in this process, on servers or
in a folder.

A table with ``num_embeddings`` is ``NAME.weight`` (num_embeddings, dim), as in
``torch.nn.Embedding``. A table without bound is ``NAME.ids`` (n,) int64 and ``NAME.vectors``
(n, dim), sorted by id. ``load_state_dict`` of a module of ``torch_edl.nn`` takes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

WEIGHT, IDS, VECTORS = "weight", "ids", "vectors"


def of_weight(modules: Sequence[str], weight: Floats) -> dict[str, torch.Tensor]:
    """A whole table with a bound, under the paths of its modules."""
    return {_name(path, WEIGHT): torch.from_numpy(weight) for path in modules}


def of_rows(modules: Sequence[str], ids: Ids, vectors: Floats) -> dict[str, torch.Tensor]:
    """A table without bound, its rows in any order."""
    order = np.argsort(ids)
    made = {IDS: torch.from_numpy(ids[order]), VECTORS: torch.from_numpy(vectors[order])}
    return {_name(path, key): value for path in modules for key, value in made.items()}


def rows_in(
    state: Mapping[str, Any], prefix: str, num_embeddings: int | None, dim: int
) -> tuple[Ids, Floats] | None:
    """Ids (n,) and vectors (n, dim) of a table in a ``state_dict``; None if the table is not there.

    Raises:
        ValueError: the values do not fit the table; the text says why.
    """
    if prefix + IDS in state and prefix + VECTORS in state:
        ids, vectors = state[prefix + IDS], state[prefix + VECTORS]
        if ids.dtype != torch.int64 or vectors.shape != (len(ids), dim):
            raise ValueError(
                f"{prefix}ids: {ids.dtype} {tuple(ids.shape)}, vectors {tuple(vectors.shape)}; "
                f"expected int64 (n,) and (n, {dim})"
            )
        if num_embeddings and len(ids):
            low, high = (int(end) for end in ids.aminmax())
            if low < 0 or high >= num_embeddings:
                raise ValueError(
                    f"{prefix}ids: {low} to {high}, but this table has {num_embeddings} rows"
                )
    elif prefix + WEIGHT in state:
        vectors = state[prefix + WEIGHT]
        if not num_embeddings or vectors.shape != (num_embeddings, dim):
            raise ValueError(
                f"{prefix}weight: {tuple(vectors.shape)}; expected "
                + (f"({num_embeddings}, {dim})" if num_embeddings else f"{prefix}ids and vectors")
            )
        ids = torch.arange(num_embeddings)
    else:
        return None
    return ids.cpu().numpy(), vectors.detach().cpu().float().contiguous().numpy()


def _name(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
