"""Float32 matrix products by oneDNN, on the processors where torch's own choice is slow.

On x86 torch multiplies float32 matrices by MKL, which on AMD processors stays with AVX2 code.
oneDNN, which is inside torch too (convolutions use it), takes AVX-512 there: measured on one
thread of a Zen 5 at 512 x 429 x 400, 1.54 ms against 0.70 ms. So a worker may put it under
``aten::mm`` and ``aten::addmm``, where linear layers end, forward and backward, compiled or not.
"""

from __future__ import annotations

import functools
import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor

log = logging.getLogger(__name__)

# Multiplications (m * n * k) below which Python's part of the call costs more than it saves.
MIN_PRODUCTS = 1 << 21

_installed: list[torch.library.Library] = []


@functools.cache
def worthwhile() -> bool:
    """Whether this processor gains: AMD with AVX-512, and a torch that has the kernel.

    A fixed rule and no timing, so that a job computes the same bits in all its lives.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def install() -> None:
    """Put oneDNN under torch's float32 ``mm`` and ``addmm`` on CPU, in this whole process.

    Small products, other types and what else oneDNN does not take go to torch's own kernel.
    Results differ from torch's in rounding only. Idempotent; undone by :func:`uninstall`.
    """
    if _installed:
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        # torch warns of every kernel that is replaced, which is the purpose here.
        warnings.simplefilter("ignore")
        library.impl("mm", _mm, "CPU")  # type: ignore[no-untyped-call]
        library.impl("addmm", _addmm, "CPU")  # type: ignore[no-untyped-call]
    _installed.append(library)
    log.info("float32 matrix products by oneDNN (AMD with AVX-512)")


def uninstall() -> None:
    """Give torch its own kernels back."""
    while _installed:
        _installed.pop()._destroy()  # type: ignore[no-untyped-call]


def _suits(left: Tensor, right: Tensor) -> bool:
    return (
        left.dtype is torch.float32
        and right.dtype is torch.float32
        and left.dim() == 2
        and right.dim() == 2
        and left.shape[1] == right.shape[0]
        and left.shape[0] * left.shape[1] * right.shape[1] >= MIN_PRODUCTS
    )


def _mm(left: Tensor, right: Tensor) -> Tensor:
    if _suits(left, right):
        return _linear(left, right, None)
    # The variant with `out` is another operator, which still has torch's kernel; it checks the
    # arguments and gives the empty tensor its shape.
    return torch.ops.aten.mm.out(left, right, out=left.new_empty(0))  # type: ignore[no-any-return]


def _addmm(
    bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    if (
        beta == 1
        and alpha == 1
        and bias.dtype is torch.float32
        and bias.dim() == 1
        and bias.shape[0] == right.shape[-1]
        and _suits(left, right)
    ):
        return _linear(left, right, bias)
    return torch.ops.aten.addmm.out(  # type: ignore[no-any-return]
        bias, left, right, beta=beta, alpha=alpha, out=left.new_empty(0)
    )


def _linear(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(  # type: ignore[no-any-return]
        left, right.t(), bias, "none", [], ""
    )
