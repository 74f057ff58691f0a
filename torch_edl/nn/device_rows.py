"""Rows of a block on the model's device, and the sum of their gradients there.

For a GPU, values and gradients are copied through pinned memory on a separate CUDA stream, so that
copies and kernels of the model do not wait for each other. For a CPU, the same steps are plain
copies; only tests use them, because rows in host memory need no device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class DeviceRows:
    """Rows (u, dim) of a block on a device.

    The copy to the device starts at once. Lookups wait for it on the device, not in this thread.

    Args:
        values: the rows (u, dim).
        device: device of the model.
    """

    def __init__(self, values: Floats, device: torch.device) -> None:
        self._device = device
        self._copies = copies_of(device)
        self._values = self._copies.up(values)
        self._gradient: torch.Tensor | None = None
        self._down: Callable[[], Floats] | None = None

    def look_up(self, inverse: Ids) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows at ``inverse`` (n,) as (n, dim), and ``inverse`` on the device."""
        index = self._copies.up(inverse)()
        return self._values().index_select(0, index), index

    def add(self, index: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add the gradient (n, dim) of a lookup of the rows ``index`` (n,), both on the device."""
        self._down = None
        if self._gradient is None:
            self._gradient = torch.zeros_like(self._values())
        self._gradient.index_add_(0, index, gradient)

    def start_down(self) -> None:
        """Start to copy the gradient to the host; without a gradient, do nothing."""
        if self._gradient is not None and self._down is None:
            self._down = self._copies.down(self._gradient)

    def drop_gradient(self) -> None:
        """Discard the gradients since the last :meth:`take_gradient`."""
        self._down = self._gradient = None

    def take_gradient(self) -> Floats | None:
        """Return the sum of the gradients (u, dim) since the last call; None if there was none."""
        self.start_down()
        down, self._down, self._gradient = self._down, None, None
        return None if down is None else down()


class Copies:
    """Copies for a device that shares the memory of the host."""

    def up(self, values: npt.NDArray[Any]) -> Callable[[], torch.Tensor]:
        """Start to copy an array to the device; the array may be changed when this returns.

        Returns:
            A function that returns the tensor. Later work of the current stream waits for the copy.
        """
        tensor = torch.from_numpy(values.copy())
        return lambda: tensor

    def down(self, tensor: torch.Tensor) -> Callable[[], Floats]:
        """Start to copy a tensor, after the work that was queued before.

        Returns:
            A function that waits for the copy and returns the values.
        """
        values: Floats = tensor.clone().numpy()
        return lambda: values


class CudaCopies(Copies):
    """Copies to and from a GPU, on a separate stream and through pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def up(self, values: npt.NDArray[Any]) -> Callable[[], torch.Tensor]:
        """See :class:`Copies`."""
        # From torch's cache of pinned memory, which keeps the memory until the copy is done.
        dtype = getattr(torch, values.dtype.name)
        pinned = torch.empty(values.shape, dtype=dtype, pin_memory=True)
        np.copyto(pinned.numpy(), values)  # values may be a read-only view of a received message
        with torch.cuda.stream(self._stream):
            tensor = pinned.to(self._device, non_blocking=True)
            done = self._stream.record_event()

        def ready() -> torch.Tensor:
            current = torch.cuda.current_stream(tensor.device)
            current.wait_event(done)
            tensor.record_stream(current)
            return tensor

        return ready

    def down(self, tensor: torch.Tensor) -> Callable[[], Floats]:
        """See :class:`Copies`."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._stream)
            done = self._stream.record_event()

        def wait() -> Floats:
            done.synchronize()
            values: Floats = host.numpy()
            return values

        return wait


@functools.cache
def copies_of(device: torch.device) -> Copies:
    """Return the copies for a device; each device has one stream."""
    return CudaCopies(device) if device.type == "cuda" else Copies()
