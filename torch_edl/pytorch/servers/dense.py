"""Dense parameters of a torch model as the flat vectors of the servers, and buffers that keep their
type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.nn.embedding import Table
from torch_edl.nn.model_tables import dense_names
from torch_edl.nn.rows import state_of_rows, state_of_weight
from torch_edl.optim import group_of
from torch_edl.ps_client.client import BUFFER_GROUP, PsClient
from torch_edl.ps_client.partition import DenseGradient, DenseSegment, PartitionedIds, TableIds
from torch_edl.wire import codec
from torch_edl.wire import pserver_pb2 as pb

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

# Float types whose values fit into float32; they are sent in the flat vector.
_FLAT = {torch.float32, torch.float16, torch.bfloat16}
# Types of untrained values that are sent separately; TensorProto and checkpoints support them.
_EXACT = {torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}


_BLOCK_BYTES = 64 << 20  # size of the rows in one pull


@dataclass(frozen=True)
class DenseTensor:
    """A parameter or buffer of a model that is stored on servers."""

    module: nn.Module
    """Module that owns the tensor."""
    attribute: str
    """Name of the tensor in the module."""
    group: int
    """Index of the optimizer's parameter group; negative for frozen parameters and buffers."""
    aliases: list[str] = field(default_factory=list)
    """Other names in the ``state_dict``, for tied weights."""

    @property
    def tensor(self) -> torch.Tensor:
        """The current tensor of the module; a module may assign another tensor to a buffer."""
        # Without the search of nn.Module.__getattr__, which costs a microsecond.
        parameter = self.module._parameters.get(self.attribute)
        found: torch.Tensor = (
            getattr(self.module, self.attribute) if parameter is None else parameter
        )
        return found

    @property
    def is_exact(self) -> bool:
        """True if the value keeps its type and is not in the flat vector."""
        return self.tensor.dtype not in _FLAT

    def to_proto(self, name: str) -> pb.DenseParameter:
        """Return a copy of the value for the servers."""
        tensor = self.tensor.detach()
        array = (tensor.cpu() if self.is_exact else tensor.float().cpu()).numpy()
        return pb.DenseParameter(
            name=name, value=codec.to_proto(array), group=self.group, aliases=self.aliases
        )


def dense_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, DenseTensor]:
    """Return every parameter and persistent buffer by its first name in the ``state_dict``.

    The empty parameters of embedding tables are not included.

    Raises:
        UsageError: servers cannot train a parameter's type, or cannot store a buffer's type.
    """
    group_in = group_of(optimizer)
    found: dict[str, DenseTensor] = {}
    by_tensor: dict[int, DenseTensor] = {}
    for name, module, attribute, is_buffer in dense_names(model):
        tensor = getattr(module, attribute)
        group = BUFFER_GROUP if is_buffer else group_in(tensor)
        first = by_tensor.get(id(tensor))
        if first is not None:
            first.aliases.append(name)
            continue
        _check_type(name, tensor, group)
        by_tensor[id(tensor)] = found[name] = DenseTensor(module, attribute, group)
    return found


def _check_type(name: str, tensor: torch.Tensor, group: int) -> None:
    if tensor.dtype in _FLAT or (group < 0 and tensor.dtype in _EXACT):
        return
    kind = str(tensor.dtype).removeprefix("torch.")
    if group >= 0:
        raise UsageError(
            f"parameter {name}: {kind}; parameter servers train in float32: "
            "make it so with .float(), or use --strategy allreduce"
        )
    raise UsageError(
        f"buffer {name}: {kind} cannot be kept on parameter servers; register it with "
        "persistent=False, or use --strategy allreduce"
    )


class ExactBuffers:
    """Buffers that keep their type.

    This process continues with its own values; changed values are sent to the servers, for
    checkpoints and outputs.
    """

    def __init__(self, tensors: Mapping[str, DenseTensor], given: Mapping[str, Array]) -> None:
        """Load the values of the servers: those of the first worker, or restored ones."""
        self._tensors = {name: each for name, each in tensors.items() if each.is_exact}
        self._given: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            for name, each in self._tensors.items():
                self._given[name] = torch.from_numpy(given[name].copy())
                each.tensor.copy_(self._given[name])

    def changed(self) -> dict[str, Array]:
        """Return the values that have changed since the connection to the servers."""
        changed = {}
        for name, each in self._tensors.items():
            value = each.tensor.detach().cpu()
            given = self._given.get(name)
            if given is None or not torch.equal(value, given):
                # Sent with every push from now on, since it is unknown which pushes were applied.
                self._given.pop(name, None)
                changed[name] = value.numpy()
        return changed


def _on_host(vector: torch.Tensor) -> torch.Tensor:
    """Return the vector if it is on the CPU; else (pinned) memory to copy through."""
    if vector.device.type == "cpu":
        return vector
    return torch.zeros(vector.shape, pin_memory=vector.device.type == "cuda")


class FlatVector:
    """The dense parameters of one server, as a flat vector and as tensors of the model.

    The vector is on the device of the model. Float32 parameters become views of the vector, so a
    pull is a single copy. For a GPU, values and gradients are copied through pinned memory.

    Args:
        memory: returns memory (n,) for a gradient, whose content is undefined.
    """

    def __init__(
        self,
        tensors: Mapping[str, DenseTensor],
        segments: Sequence[DenseSegment],
        memory: Callable[[int], Floats],
    ) -> None:
        size = sum(segment.size for segment in segments)
        device = next((tensors[s.name].tensor.device for s in segments), torch.device("cpu"))
        self._values = torch.zeros(size, device=device)
        self._memory = memory
        # On a CPU, each update gets memory of its own, from which the server reads the gradient.
        on_cpu = device.type == "cpu"
        self._gradient = None if on_cpu else torch.zeros(size, device=device)
        # Host memory for pulled values, or the vector itself, and for gradients of a GPU.
        self._pulled = _on_host(self._values)
        self._pushed = None if self._gradient is None else _on_host(self._gradient)
        # Tensors that are not views of the vector, and all buffers: a module may assign another
        # tensor to a buffer, which is then no view.
        self._copied: list[tuple[DenseTensor, torch.Tensor]] = []
        self._parts: list[tuple[DenseTensor, slice]] = []
        self._trained: list[tuple[str, DenseTensor, slice, int]] = []
        """Name, tensor, range in the vector and address of each trained parameter."""
        self._runs: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Trained ranges of the current and the kept values, with adjacent ranges merged."""
        self._kept = self._values
        """Values as loaded from the server; a script may have changed the parameters since."""
        # Indices of the parameters with a gradient in the current update.
        self._reached: set[int] = set()
        for segment in segments:
            each = tensors[segment.name]
            tensor = each.tensor
            place = slice(segment.start, segment.start + segment.size)
            view = self._values[place].view(segment.shape)
            view.copy_(tensor.detach())
            fits = tensor.dtype == torch.float32 and tensor.device == device
            if fits:
                tensor.data = view
            if not fits or each.group == BUFFER_GROUP:
                self._copied.append((each, view))
            self._parts.append((each, place))
            if each.group != BUFFER_GROUP:
                self._trained.append((segment.name, each, place, view.data_ptr()))

    @torch.no_grad()
    def check_unchanged(self) -> None:
        """Check that the script has not changed a parameter since the last :meth:`load`.

        The first call only starts to keep the loaded values for later checks.

        Raises:
            UsageError: a parameter was changed, and the change would be lost.
        """
        if self._kept is self._values:  # first call: the current values did not come from servers
            self._kept = torch.empty_like(self._values)
            self._runs = [(self._values[run], self._kept[run]) for run in _runs(self._trained)]
            return
        # Fast path, as this runs at each pull: usually, all parameters are views of the vector.
        moved = any(each.tensor.data_ptr() != pointer for _, each, _, pointer in self._trained)
        if not moved and all(_equal(own, kept) for own, kept in self._runs):
            return
        for name, each, place, _ in self._trained:
            own = each.tensor.detach().reshape(-1)
            kept = self._kept[place].to(own.device, own.dtype)
            if not torch.equal(own, kept) and not own.isclose(kept, 0, 0, equal_nan=True).all():
                raise UsageError(
                    f"parameter {name} was changed other than by the optimizer's step; parameter "
                    "servers hold it, and the change would be lost: change it before the first "
                    "batch, or use --strategy allreduce"
                )

    def load(self, values: Floats | None) -> None:
        """Load the values of the server; None if the values loaded before are still valid."""
        if values is not None:
            np.copyto(self._pulled.numpy(), values)
            if self._pulled is not self._values:
                self._values.copy_(self._pulled)
            if self._kept is not self._values:
                self._kept.copy_(self._values)
        if self._copied:
            with torch.no_grad():
                for each, view in self._copied:
                    tensor = each.tensor
                    if tensor.data_ptr() != view.data_ptr():
                        tensor.copy_(view)

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradients of one minibatch to those of the update."""
        whole = self._own_gradient()
        if not self._reached and not self._copied:
            gradients = [each.tensor.grad for each, _ in self._parts]
            flat = [g.view(-1) for g in gradients if g is not None and g.is_contiguous()]
            if flat and len(flat) == len(gradients):
                torch.cat(flat, out=whole)
                self._reached.update(range(len(flat)))
                return
        for index, (each, place) in enumerate(self._parts):
            gradient = None if each.group == BUFFER_GROUP else each.tensor.grad
            if gradient is None:
                continue
            if gradient.is_sparse:  # nn.Embedding(sparse=True)
                gradient = gradient.to_dense()
            if index in self._reached:
                whole[place].add_(gradient.reshape(-1))
            else:
                whole[place].copy_(gradient.reshape(-1))
                self._reached.add(index)

    def _own_gradient(self) -> torch.Tensor:
        """Return the gradient of the current update."""
        if self._gradient is None:
            self._gradient = torch.from_numpy(self._memory(len(self._values)))
        return self._gradient

    @torch.no_grad()
    def take_gradient(self) -> DenseGradient:
        """Return the collected gradient, which does not change afterwards."""
        whole = self._own_gradient()
        for index, (each, place) in enumerate(self._parts):
            if each.group == BUFFER_GROUP:
                whole[place].copy_(each.tensor.reshape(-1))
                self._reached.add(index)
        untouched = [index for index in range(len(self._parts)) if index not in self._reached]
        self._reached.clear()
        if self._pushed is None:
            self._gradient = None
            return DenseGradient(whole.numpy(), untouched)
        self._pushed.copy_(whole)
        flat = self._memory(len(whole))
        np.copyto(flat, self._pushed.numpy())
        return DenseGradient(flat, untouched)

    def clear_gradients(self) -> None:
        """Clear the gradients of all parameters."""
        for each, _ in self._parts:
            each.tensor.grad = None

    def forget(self, *, gradients: bool = True) -> None:
        """Discard the collected gradients, and clear those of all parameters if requested."""
        self._reached.clear()
        if gradients:
            self.clear_gradients()


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True for equal values; on a CPU, numpy is five times as fast as torch 2.13."""
    if one.device.type == "cpu":
        return np.array_equal(one.numpy(), other.numpy())
    return torch.equal(one, other)


def _runs(trained: Sequence[tuple[str, DenseTensor, slice, int]]) -> list[slice]:
    """Return the ranges of trained parameters, with adjacent ranges merged."""
    runs: list[slice] = []
    for _, _, place, _ in trained:
        if runs and runs[-1].stop == place.start:
            runs[-1] = slice(runs[-1].start, place.stop)
        else:
            runs.append(place)
    return runs


def gathered(
    client: PsClient, dense: Mapping[str, DenseTensor], tables: Iterable[Table]
) -> dict[str, torch.Tensor]:
    """Pull the whole model from the servers; the model of this process does not change.

    Raises:
        ServersLostError: the servers are unreachable.
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
        name, dim, paths = table.table, table.embedding_dim, table.paths
        if table.num_embeddings is None:
            state |= state_of_rows(paths, *client.rows(name, dim))
        else:
            state |= state_of_weight(paths, _weight(client, name, table.num_embeddings, dim))
    return state


def _weight(client: PsClient, table: str, num_embeddings: int, dim: int) -> Floats:
    """Return the whole table (num_embeddings, dim); missing rows have their initial values."""
    whole = np.empty((num_embeddings, dim), np.float32)
    block = max(1, _BLOCK_BYTES // (4 * dim))
    for start in range(0, num_embeddings, block):
        wanted = np.arange(start, min(start + block, num_embeddings))
        ids = PartitionedIds.of(wanted, client.servers)
        pull = client.pull([TableIds(table, dim, ids)], dense=False, read_only=True)
        whole[ids.unique] = pull.wait().rows[0]
    return whole
