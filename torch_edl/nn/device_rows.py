"""Rows of a block on the device of the model, and the sum of their gradients there.

On a GPU values go up, and gradients come down, through pinned memory and on a stream of copies, so
that neither waits for the model's kernels nor these for the copies. On a CPU (where only tests
come here: rows in this process's memory need no device) the same steps are plain copies.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class DeviceRows:
    """Rows (u, dim) of a block on a device.

    The copy begins at once; whatever looks rows up waits for it on the device, not here.

    Args:
        values: (u, dim).
        device: where the model computes.
    """

    def __init__(self, values: Floats, device: torch.device) -> None:
        self._device = device
        self._copies = copies_of(device)
        self._values = self._copies.up(values)
        self._gradient: torch.Tensor | None = None
        self._down: Download | None = None

    def look_up(self, inverse: Ids) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows ``inverse`` (n,) as (n, dim), and ``inverse`` on the device."""
        index = self._copies.up(inverse).ready()
        return self._values.ready().index_select(0, index), index

    def add(self, index: torch.Tensor, gradient: torch.Tensor) -> None:
        """Adds the gradient (n, dim) of a lookup of the rows ``index`` (n,), both on the device."""
        self._down = None
        if self._gradient is None:
            self._gradient = torch.zeros_like(self._values.ready())
        self._gradient.index_add_(0, index, gradient)

    def start_down(self) -> None:
        """Begins to copy the gradient to the host's memory; without one it does nothing."""
        if self._gradient is not None and self._down is None:
            self._down = self._copies.down(self._gradient)

    def drop_gradient(self) -> None:
        """Forgets the gradients since the last :meth:`take_gradient`."""
        self._down = self._gradient = None

    def take_gradient(self) -> Floats | None:
        """The sum of the gradients (u, dim) since the last call; None: there was none."""
        self.start_down()
        down, self._down, self._gradient = self._down, None, None
        return None if down is None else down.wait()


class Upload:
    """A tensor on its way to a device."""

    def __init__(self, tensor: torch.Tensor, done: Any | None) -> None:
        self._tensor = tensor
        self._done = done

    def ready(self) -> torch.Tensor:
        """The tensor; what the current stream does from now on has its values."""
        if self._done is not None:
            current = torch.cuda.current_stream(self._tensor.device)
            current.wait_event(self._done)
            self._tensor.record_stream(current)
        return self._tensor


class Download:
    """A tensor on its way to the host's memory."""

    def __init__(self, tensor: torch.Tensor, done: Any | None) -> None:
        self._tensor = tensor
        self._done = done

    def wait(self) -> Floats:
        """Its values."""
        if self._done is not None:
            self._done.synchronize()
        values: Floats = self._tensor.numpy()
        return values


class Copies:
    """Copies between the memories of host and device, where both are one."""

    def up(self, values: npt.NDArray[Any]) -> Upload:
        """Begins to copy an array to the device; it may be changed when this returns."""
        return Upload(torch.from_numpy(values.copy()), None)

    def down(self, tensor: torch.Tensor) -> Download:
        """Begins to copy a tensor, once all that was to be done to it is done."""
        return Download(tensor.clone(), None)


class CudaCopies(Copies):
    """The same to a GPU: on a stream of their own, from and to pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def up(self, values: npt.NDArray[Any]) -> Upload:
        """See :class:`Copies`."""
        # From torch's cache of pinned memory, which keeps it until the copy is done.
        dtype = getattr(torch, values.dtype.name)
        pinned = torch.empty(values.shape, dtype=dtype, pin_memory=True)
        np.copyto(pinned.numpy(), values)  # which may be a view of what came, not writable
        with torch.cuda.stream(self._stream):
            tensor = pinned.to(self._device, non_blocking=True)
            return Upload(tensor, self._stream.record_event())

    def down(self, tensor: torch.Tensor) -> Download:
        """See :class:`Copies`."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._stream)
            return Download(host, self._stream.record_event())


@functools.cache
def copies_of(device: torch.device) -> Copies:
    """The copies to and from a device; one stream for each."""
    return CudaCopies(device) if device.type == "cuda" else Copies()
