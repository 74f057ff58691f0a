"""``torch-edl image``: a Dockerfile for the pods of a job."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

from torch_edl import __version__
from torch_edl.checkpoint.durable import write_text
from torch_edl.cli.terminal import stdout
from torch_edl.config import extensions
from torch_edl.data.sources import opening
from torch_edl.errors import UsageError
from torch_edl.plugins.kubernetes.objects.pod import USER
from torch_edl.training.contract.backends import package_of

# PyTorch publishes its wheels in one folder per variant.
_WHEELS = "https://download.pytorch.org/whl"
_VARIANT = re.compile(r"cpu|cu\d{2,3}|rocm\d(\.\d)*|xpu")
# Suffixes of files that pip can install.
_PACKAGES = (".whl", ".tar.gz", ".zip")

_TEMPLATE = """\
# Written by torch-edl image. In the folder of the code:
#   docker build -t REGISTRY/NAME:TAG{file} . && docker push REGISTRY/NAME:TAG
#   torch-edl run MODEL.py --platform kubernetes --image REGISTRY/NAME:TAG {run}...
FROM python:{python}-slim AS build
# The compiler that torch-edl needs stays in this stage.
RUN apt-get update && apt-get install -y --no-install-recommends g++ git \\
 && rm -rf /var/lib/apt/lists/*
{copy}RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels {install}

FROM python:{python}-slim
ENV PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# torch first and alone: it is the largest layer, and changes least.
RUN pip install torch --index-url {wheels}
COPY --from=build /wheels /wheels
RUN pip install "$(echo /wheels/torch_edl-*.whl)[{extras}]" && rm -rf /wheels
{requirements}{code}USER {user}:{user}
"""


def main(args: argparse.Namespace) -> int:
    """Write the Dockerfile.

    Raises:
        UsageError: a variant or an extra that does not exist, a file that is missing, or an output
            file that exists already.
    """
    text = _dockerfile(args)
    if args.output == "-":
        sys.stdout.write(text)
        return 0
    path = Path(args.output)
    if path.exists() and not args.force:
        raise UsageError(f"--output {path}: is there already; name another file, or add --force")
    write_text(path, text)
    stdout().print(f"{path}: written; its first lines say how to build the image", soft_wrap=True)
    return 0


def _extras(model_file: str, data: Sequence[str], named: Sequence[str]) -> list[str]:
    """Return the extras of torch-edl that jobs with this model file and these data need."""
    known = distribution("torch-edl").metadata.get_all("Provides-Extra") or []
    for name in named:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise UsageError(f"--extra {name}: no extra of torch-edl; {hint}")
    found = set(named).union(*map(opening.extras, data))
    if model_file:
        if not Path(model_file).is_file():
            raise UsageError(f"{model_file}: no such file; name a model file")
        found |= extensions.extras_of(extensions.BACKENDS, package_of(model_file))
    return ["kubernetes", *sorted(found - {"kubernetes"})]


def _dockerfile(args: argparse.Namespace) -> str:
    """Return the text of the Dockerfile. The build context of the image is the current folder."""
    variant, install, requirements, code = args.torch, args.install, args.requirements, args.code
    if not _VARIANT.fullmatch(variant):
        raise UsageError(
            f"--torch {variant}: no variant of torch; write cpu, or that of your GPUs, such as "
            "cu126 (PyTorch's page on installation lists them)"
        )
    if code and not code.startswith("/"):
        raise UsageError(f"--code {code}: write an absolute path of the image, such as /app")
    copy = ""
    wanted = install or f"torch-edl=={__version__}"
    if install and Path(install).exists():
        place = _in_context("--install", install)
        folder = Path(install).is_dir()
        copy = f"COPY {_json(place, '/src/' if folder else f'/src/{Path(install).name}')}\n"
        wanted = "/src" if folder else f"/src/{Path(install).name}"
    elif install.endswith(_PACKAGES) and "://" not in install:
        raise UsageError(f"--install {install}: no such file")
    needs = ""
    if requirements:
        if not Path(requirements).is_file():
            raise UsageError(f"--requirements {requirements}: no such file")
        place = _in_context("--requirements", requirements)
        needs = f"COPY {_json(place, '/tmp/requirements.txt')}\n"
        needs += "RUN pip install -r /tmp/requirements.txt\n"
    return _TEMPLATE.format(
        file="" if args.output in ("Dockerfile", "-") else f" -f {shlex.quote(args.output)}",
        run=f"--code-in-image {code} " if code else "",
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        copy=copy,
        install=shlex.quote(wanted),
        extras=",".join(_extras(args.model_file, args.data, args.extra)),
        wheels=f"{_WHEELS}/{variant}",
        requirements=needs,
        code=f"COPY {_json('.', code)}\nWORKDIR {code}\n" if code else "",
        user=USER,
    )


def _in_context(option: str, path: str) -> str:
    """Return a path relative to the current folder, which is the build context of the image."""
    try:
        return Path(path).absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        raise UsageError(
            f"{option} {path}: is outside this folder, and an image is built of the files of one "
            "folder; copy it here"
        ) from None


def _json(*words: str) -> str:
    """Return the words as a JSON array, the form of an instruction that allows blanks in a path."""
    return json.dumps(words, ensure_ascii=False)
