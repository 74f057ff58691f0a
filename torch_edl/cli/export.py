"""``torch-edl export``: an output folder as one plain torch state_dict."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_edl.cli import preflight, saved_model
from torch_edl.cli.terminal import stdout
from torch_edl.errors import CheckpointError, EdlError, UsageError

if TYPE_CHECKING:
    import torch

SUFFIXES = (".pt", ".safetensors")
_FORMAT = 1
_BLOCK_ELEMENTS = 1 << 22


def main(args: argparse.Namespace) -> int:
    """Reads the folder, fills the rows that were never trained, writes the file.

    Raises:
        UsageError: not an output folder, or a file name of another kind.
        CheckpointError: the folder is damaged.
    """
    directory = Path(args.directory)
    file = Path(args.file)
    if not saved_model.is_output(directory):
        raise UsageError(f"{directory}: no output of torch-edl run there; name its --output")
    preflight.check_output_file(args.file, SUFFIXES, option="FILE")
    state = state_dict(directory)
    _write(state, file)
    elements = sum(t.numel() for t in state.values())
    stdout().print(f"{file}: {len(state)} tensors, {elements:,} elements", soft_wrap=True)
    return 0


def state_dict(directory: Path) -> dict[str, torch.Tensor]:
    """The model of an output folder.

    Dense parameters and buffers keep their names. A table NAME of ``num_embeddings`` rows becomes
    ``NAME.weight`` (num_embeddings, dim) float32, rows that were never seen as they would have
    started. One without bound becomes ``NAME.ids`` (n,) int64 and ``NAME.vectors`` (n, dim).

    Raises:
        CheckpointError: the folder is damaged, or of a newer format.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    metadata = _metadata(directory)
    try:
        state: dict[str, torch.Tensor] = load_file(directory / saved_model.DENSE)
        for name, table in metadata["tables"].items():
            rows = load_file(directory / "embeddings" / f"{name}.safetensors")
            state.update(_table(name, table, rows["ids"], rows["vectors"]))
    except (SafetensorError, FileNotFoundError, KeyError) as error:
        raise CheckpointError(f"{directory}: damaged: {error}") from error
    return state


def _metadata(directory: Path) -> dict[str, Any]:
    path = directory / saved_model.METADATA
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        version = metadata["format"]
        if version != _FORMAT:
            raise CheckpointError(
                f"{path}: format {version}, this torch-edl reads {_FORMAT}; use a newer one"
            )
        if not isinstance(metadata["tables"], dict):
            raise TypeError("tables is no object")
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
    return dict(metadata)


def _table(
    name: str, table: dict[str, Any], ids: torch.Tensor, vectors: torch.Tensor
) -> dict[str, torch.Tensor]:
    import torch

    count, dim = int(table["num_embeddings"]), int(table["dim"])
    if not count:
        return {f"{name}.ids": ids, f"{name}.vectors": vectors}
    if vectors.shape != (len(ids), dim):
        raise CheckpointError(
            f"table {name}: vectors of shape {tuple(vectors.shape)}, the metadata says "
            f"({len(ids)}, {dim})"
        )
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise CheckpointError(f"table {name}: ids beyond its {count} rows")
    weight = torch.empty((count, dim), dtype=torch.float32)
    trained = torch.zeros(count, dtype=torch.bool)
    trained[ids] = True
    weight[ids] = vectors
    _fill(weight, (~trained).nonzero().squeeze(1), name, table)
    return {f"{name}.weight": weight}


def _fill(weight: torch.Tensor, ids: torch.Tensor, name: str, table: dict[str, Any]) -> None:
    """Sets the rows of ``ids`` to what they start from, a block at a time."""
    import torch

    from torch_edl._core import init_rows

    start = table["initializer"]
    args = {key: float(value) for key, value in start["args"].items()}
    dim = int(table["dim"])
    for block in torch.split(ids, max(1, _BLOCK_ELEMENTS // dim)):
        rows = init_rows(name, int(table["seed"]), start["kind"], args, block.numpy(), dim)
        weight[block] = torch.from_numpy(rows)


def _write(state: dict[str, torch.Tensor], file: Path) -> None:
    from safetensors import SafetensorError

    file.parent.mkdir(parents=True, exist_ok=True)
    # safetensors wants a path, so the file that is renamed at the end is made by hand.
    temporary = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        if file.suffix == ".pt":
            import torch

            with open(temporary, "wb") as output:
                torch.save(state, output)
        else:
            from safetensors.torch import save_file

            save_file(state, temporary)
        os.replace(temporary, file)
    except (RuntimeError, SafetensorError) as error:
        # Both hide what the disk said: torch behind its own complaint, safetensors in a text.
        behind = error.__context__
        cause = behind.strerror if isinstance(behind, OSError) else error
        raise EdlError(f"{file}: cannot be written: {cause}") from error
    finally:
        temporary.unlink(missing_ok=True)
