"""The complete training state of a process: model, optimizers, schedulers and position in the data.

All members of a ring hold equal replicas; a local worker holds the only one. A replica consists of
a JSON header and of tensors in a fixed order. It is sent to members that join and written to
checkpoints. Nothing is pickled.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_edl.checkpoint import layout, tensor_files
from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.checkpoint.tensor_files import MODEL_FILE, OPTIMIZER_FILE, optimizer_header
from torch_edl.engine.replica import Position, snapshot_of
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.nn.model_tables import dense_names, tables_of
from torch_edl.nn.rows import state_of_rows, state_of_weight
from torch_edl.optim import group_of, optimizer_config
from torch_edl.pytorch import state_dict
from torch_edl.tables.table import EmbeddingTable
from torch_edl.tables.watermarks import Watermarks

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class State:
    """A replica at one point in time."""

    header: dict[str, Any]
    """JSON values: position, optimizer groups, states of schedulers and further objects, and types
    of the tensors."""
    tensors: dict[str, torch.Tensor]
    """Tensors ``model.NAME``, ``optimizer.I.PARAMETER.SLOT`` and ``extra.NAME.PATH`` by name."""
    tables: Sequence[tuple[EmbeddingTable, int]] = ()
    """Embedding tables of this process and their update counters. Tables are written to
    checkpoints, but not sent to other members."""

    @property
    def model(self) -> dict[str, torch.Tensor]:
        """Values of the model by their names in its ``state_dict``."""
        return {n[6:]: t for n, t in self.tensors.items() if n.startswith("model.")}


class Replica:
    """The parts of a training program that are equal in all members of a ring; a
    :class:`~torch_edl.engine.replica.ModelReplica`.

    Args:
        optimizers: the optimizers, in the same order in every process.
        stateful: schedulers, gradient scalers and other objects whose ``state_dict`` has plain
            values only.
        extra: further objects by name, whose ``state_dict`` may have tensors, too.
        loads_optimizer: load the state of the optimizers with the values of another job's
            checkpoint. Their options, such as the learning rate, and ``stateful`` do not change.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        stateful: Sequence[Any] = (),
        extra: Mapping[str, Any] | None = None,
        *,
        loads_optimizer: bool = False,
    ) -> None:
        self._loads_optimizer = loads_optimizer
        self.model = model
        self.optimizers = tuple(optimizers)
        self.stateful = tuple(stateful)
        self.extra = dict(extra or {})
        self.position = Position()
        """Number of model updates, and position in the data."""
        self.tables = tables_of(model)
        """Embedding tables of the model."""

    def check_tables(self) -> None:
        if self.tables:
            for optimizer in self.optimizers:
                optimizer_config(optimizer)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def state(self) -> State:
        """Return the current state; its tensors are not copied.

        Raises:
            UsageError: the state of an optimizer or another part has a value that can be neither
                sent nor written.
        """
        header: dict[str, Any] = {"position": vars(self.position).copy(), "optimizers": []}
        tensors = {f"model.{name}": value for name, value in self._values().items()}
        for number, optimizer in enumerate(self.optimizers):
            slots, rest = state_dict.flatten_optimizer(
                optimizer.state_dict(), type(optimizer).__name__
            )
            header["optimizers"].append(rest)
            tensors |= {f"optimizer.{number}.{name}": slot for name, slot in slots.items()}
        header["stateful"] = [
            state_dict.jsonable(part.state_dict(), type(part).__name__) for part in self.stateful
        ]
        header["extra"] = {}
        for name, part in self.extra.items():
            own, header["extra"][name] = state_dict.flatten(part.state_dict(), f"state {name!r}")
            tensors |= {f"extra.{name}.{at}": value for at, value in own.items()}
        header["tensors"] = [
            [name, str(value.dtype).removeprefix("torch."), list(value.shape)]
            for name, value in tensors.items()
        ]
        rows = {table.table: table.local_rows for table in self.tables}  # modules may share a table
        stores = [store for store in rows.values() if store is not None]
        return State(header, tensors, [(store.table, store.table.step) for store in stores])

    def copy(self) -> State:
        """Copy the current state to the CPU, so that training may continue.

        The rows of tables are not copied but snapshotted, until :func:`write` has written them.
        """
        state = self.state()
        tensor_files.begin_snapshots(state.tables)
        return State(
            json.loads(json.dumps(state.header)),
            {n: t.detach().to("cpu", copy=True).contiguous() for n, t in state.tensors.items()},
            state.tables,
        )

    def snapshot(self, watermarks: Watermarks) -> Callable[[Path], Snapshot]:
        return snapshot_of(partial(write, self.copy()), watermarks, self.position.step)

    def outgoing(self) -> tuple[dict[str, Any], list[Bytes]]:
        state = self.state()
        return state.header, [as_bytes(each.cpu()).numpy() for each in state.tensors.values()]

    def incoming(self, header: dict[str, Any]) -> tuple[list[Bytes], Callable[[], None]]:
        received = {
            name: torch.empty(shape, dtype=getattr(torch, dtype))
            for name, dtype, shape in header["tensors"]
        }
        places = [as_bytes(each).numpy() for each in received.values()]
        return places, lambda: self.load(State(header, received))

    def load(self, state: State, where: object = "the saved state") -> None:
        """Load a state without its tables. Parameters keep their memory.

        Args:
            where: source of the state, for messages.

        Raises:
            CheckpointError: the state belongs to another model or optimizer.
        """
        header, tensors = state.header, state.tensors
        if len(header["optimizers"]) != len(self.optimizers) or len(header["stateful"]) != len(
            self.stateful
        ):
            raise CheckpointError(
                f"the state has {len(header['optimizers'])} optimizers and "
                f"{len(header['stateful'])} schedulers and scalers; this script prepared "
                f"{len(self.optimizers)} and {len(self.stateful)}"
            )
        saved = header.get("extra", {})
        if saved.keys() != self.extra.keys():
            raise CheckpointError(
                f"{where} has the further objects {sorted(saved)}, and this script prepared "
                f"{sorted(self.extra)}: give prepare() the same state="
            )
        for optimizer, rest in zip(self.optimizers, header["optimizers"], strict=True):
            state_dict.check_groups(optimizer, rest)
        self.load_model(state.model, where)
        own = self._values()
        same_types = all(own[name].dtype == value.dtype for name, value in state.model.items())
        for number, optimizer in enumerate(self.optimizers):
            prefix = f"optimizer.{number}."
            slots = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            rest = header["optimizers"][number]
            state_dict.load_optimizer(optimizer, slots, rest, exact=same_types)
        for part, values in zip(self.stateful, header["stateful"], strict=True):
            part.load_state_dict(state_dict.from_json(values))
        for name, part in self.extra.items():
            prefix = f"extra.{name}."
            own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            part.load_state_dict(state_dict.unflatten(own, saved[name]))
        self.position = Position(**header["position"])

    def load_model(
        self, values: Mapping[str, torch.Tensor], where: object = "the saved state"
    ) -> None:
        """Load only the values of a model.

        Raises:
            CheckpointError: the values belong to another model.
        """
        own = self._values()
        state_dict.check_model(
            {name: value.shape for name, value in values.items()},
            {name: value.shape for name, value in own.items()},
            where=where,
        )
        with torch.no_grad():
            for name, value in values.items():
                own[name].copy_(value)

    def restore(self, folder: Path, *, values_only: bool) -> Manifest | None:
        loads_optimizer = values_only and self._loads_optimizer
        source = CheckpointReader(
            folder, values_only=values_only, optimizer=loads_optimizer, on_servers=False
        )
        own = {module.table for module in self.tables}
        whole = layout.is_checkpoint(folder) and not values_only
        with layout.reading(folder):
            if whole:
                self.load(read(folder, own), folder)
            elif loads_optimizer:
                self._load_with_optimizer(read(folder, own), folder)
            else:
                self.load_model(read_model(folder, own), folder)
        for module in self.tables:
            if module.local_rows is None:
                continue
            for optimizer in self.optimizers:
                group = group_of(optimizer)(module.weight)
                if group >= 0:
                    module.local_rows.use_kernel(optimizer, group)
            module.local_rows.restore(source)
        return source.manifest if whole else None

    def _load_with_optimizer(self, state: State, where: object) -> None:
        """Load the values of a model and the state of its optimizers, without their options."""
        own = self.state().header
        options = [[dict(each) for each in made.param_groups] for made in self.optimizers]
        header = {**state.header, "stateful": own["stateful"], "position": own["position"]}
        self.load(State(header, state.tensors), where)
        for optimizer, groups in zip(self.optimizers, options, strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(values)

    def digest(self) -> int:
        value = 0
        for parameter in self.model.parameters():
            raw = parameter.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
            value = zlib.crc32(raw.numpy(), value)  # type: ignore[arg-type]
        return value

    def _values(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the model's ``state_dict``, without rows of tables and copies."""
        if self.tables:  # state_dict() would collect the rows of the tables
            names = dense_names(self.model)
            return {name: getattr(module, key).detach() for name, module, key, _ in names}
        return {
            name: value.detach()
            for name, value in self.model.state_dict(keep_vars=True).items()
            if isinstance(value, torch.Tensor)
        }


def write(state: State, folder: Path) -> dict[str, int]:
    """Write a copied state into a folder; return the size of each file in bytes, by name.

    The model file is a plain ``state_dict`` in safetensors format.

    Raises:
        UsageError: a tensor has a type that cannot be written.
        OSError: the disk is full or read-only.
    """
    slots = {n: t for n, t in state.tensors.items() if not n.startswith("model.")}
    header = {key: value for key, value in state.header.items() if key != "tensors"}
    return tensor_files.write_replica(
        folder, state.tables, _in_file(state.model), _in_file(slots), header
    )


def read(folder: Path, without: Collection[str] = ()) -> State:
    """Read a state that :func:`write` wrote, with rows of tables as in :func:`read_model`.

    Raises:
        CheckpointError: the folder holds something else.
    """
    model, optimizer = read_model(folder, without), _read_file(folder / OPTIMIZER_FILE)
    header: dict[str, Any] = dict(optimizer_header(folder))
    return State(header, {f"model.{n}": t for n, t in model.items()} | optimizer)


def read_model(folder: Path, without: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Read the ``state_dict`` of a checkpoint of any strategy, or of an exported model.

    Rows of tables are included in the form that :mod:`torch_edl.nn.rows` describes.

    Args:
        without: names of tables to skip.

    Raises:
        CheckpointError: the folder is neither a checkpoint nor an export, or is damaged.
    """
    source = CheckpointReader(folder, values_only=True)
    if layout.is_checkpoint(folder) and source.manifest.on_servers:
        values = {name: torch.from_numpy(value) for name, value in source.dense().items()}
    else:  # read by torch, because numpy lacks some types
        name = MODEL_FILE if layout.is_checkpoint(folder) else layout.EXPORTED_MODEL
        values = _read_file(folder / name)
    for name in without:
        values.pop(f"{name}.weight", None)  # a plain weight in the file, but a table in this model
    for table in source.tables.values():
        if table.name in without:
            continue
        if table.bound:
            values |= state_of_weight(table.modules, table.weight())
        else:
            found = [rows for _, rows in table.rows()]
            ids = np.concatenate([rows.ids for rows in found])
            vectors = np.concatenate([rows.vectors for rows in found])
            values |= state_of_rows(table.modules, ids, vectors)
    return values


def _in_file(tensors: Mapping[str, torch.Tensor]) -> dict[str, tensor_files.Tensor]:
    """Return contiguous CPU tensors as a file stores them."""
    found = {}
    for name, tensor in tensors.items():
        dtype = tensor_files.NAMES.get(str(tensor.dtype).removeprefix("torch."))
        if dtype is None:
            raise UsageError(f"{name}: {tensor.dtype} cannot be written to a checkpoint")
        found[name] = tensor_files.Tensor(dtype, tuple(tensor.shape), as_bytes(tensor).numpy())
    return found


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    made = {}
    for name, found in tensor_files.read_tensors(path).items():
        # Copied into memory that torch aligns: alignment affects the last bit of vectorized sums.
        made[name] = torch.empty(found.shape, dtype=getattr(torch, tensor_files.TYPES[found.dtype]))
        as_bytes(made[name]).copy_(torch.from_numpy(found.content))
    return made


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor (n,), as a view if the tensor is contiguous, else as a copy."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
