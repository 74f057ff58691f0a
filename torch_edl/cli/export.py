"""``torch-edl export``: a trained model as one plain torch state_dict."""

from __future__ import annotations

import argparse
from pathlib import Path

from torch_edl.cli import preflight
from torch_edl.cli.terminal import stdout

SUFFIXES = (".pt", ".pth", ".safetensors")


def main(args: argparse.Namespace) -> int:
    """Reads the model, initializes the rows that were never trained, and writes the file.

    Raises:
        UsageError: there is no trained model, or the file name has another suffix.
        CheckpointError: the model is damaged.
        EdlError: the file cannot be written.
    """
    preflight.check_output_file(args.file, SUFFIXES, option="FILE")
    directory = preflight.find_model(args.source, option="SOURCE")
    # Imported after all checks: these modules import torch.
    from torch_edl.engine.replica import read_model
    from torch_edl.trainer import weights

    state = read_model(Path(directory))
    weights.write(state, Path(args.file).expanduser())
    elements = sum(tensor.numel() for tensor in state.values())
    text = f"{args.file}: {len(state)} tensors, {elements:,} elements"
    stdout().print(text, soft_wrap=True)
    return 0
