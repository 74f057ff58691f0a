"""The script ``worker.py`` after an import of torch, so that the node forks it."""

import os

import torch

os.environ["IMPORTED_BY"] = str(torch.imported_by)
import worker  # noqa: F401
