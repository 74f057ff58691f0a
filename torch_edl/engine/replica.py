"""The state that a process can hand over: model, optimizers, schedulers, and its position in the
data. The members of a ring hold equal replicas, a local worker the only one.

A replica is described by a header of plain JSON and by tensors in a fixed order. It is sent to a
member that joins, and written to checkpoints. Nothing is pickled.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_edl.checkpoint import files, layout
from torch_edl.checkpoint.manifest import Manifest, Snapshot
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.checkpoint.replica_files import MODEL_FILE, OPTIMIZER_FILE, STEM, header
from torch_edl.engine import state_dict
from torch_edl.engine.position import Position
from torch_edl.errors import CheckpointError, UsageError
from torch_edl.nn.model_tables import dense_names, tables_of
from torch_edl.nn.rows import state_of_rows, state_of_weight
from torch_edl.optim import group_of, optimizer_config
from torch_edl.tables.table import EmbeddingTable
from torch_edl.tables.watermarks import Watermarks

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class State:
    """A replica at one moment."""

    header: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    """``model.NAME`` and ``optimizer.I.PARAMETER.SLOT``."""
    tables: Sequence[tuple[EmbeddingTable, int]] = ()
    """Each embedding table of this process, with its step. Tables are written, never sent."""

    @property
    def model(self) -> dict[str, torch.Tensor]:
        """The values of the model by their names in its ``state_dict``."""
        return {n[6:]: t for n, t in self.tensors.items() if n.startswith("model.")}


class Replica:
    """The parts of a training program that every member of a ring holds alike.

    Args:
        optimizers: in an order that is the same in every process.
        stateful: other parts with ``state_dict`` and ``load_state_dict`` of plain values:
            schedulers, gradient scalers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        stateful: Sequence[Any] = (),
    ) -> None:
        self.model = model
        self.optimizers = tuple(optimizers)
        self.stateful = tuple(stateful)
        self.position = Position()
        self.tables = tables_of(model)

    @property
    def step(self) -> int:
        """Updates of the model; see :class:`Position`."""
        return self.position.step

    def count(self, minibatches: int) -> None:
        """The optimizer has stepped for these minibatches."""
        self.position.step += minibatches

    def check_tables(self) -> None:
        """Before the first step of a process that holds the model alone.

        Raises:
            UnsupportedOptimizerError: there are tables, and no kernel for their rows.
        """
        if self.tables:
            for optimizer in self.optimizers:
                optimizer_config(optimizer)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def state(self) -> State:
        """The current state: the tensors themselves, not copies.

        Raises:
            UsageError: an optimizer or another part has a value that can be neither sent nor
                written.
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
        header["tensors"] = [
            [name, str(value.dtype).removeprefix("torch."), list(value.shape)]
            for name, value in tensors.items()
        ]
        rows = {table.table: table.local_rows for table in self.tables}  # some share a table
        stores = [store for store in rows.values() if store is not None]
        return State(header, tensors, [(store.table, store.table.step) for store in stores])

    def copy(self) -> State:
        """The current state in memory of its own, on the CPU, so that training may continue.

        The rows of tables are frozen instead of copied, until :func:`write` has written them.
        """
        state = self.state()
        for table, _ in state.tables:
            table.core.end_snapshot()  # of a copy that was never written
            table.core.begin_snapshot()
        return State(
            json.loads(json.dumps(state.header)),
            {n: t.detach().to("cpu", copy=True).contiguous() for n, t in state.tensors.items()},
            state.tables,
        )

    def snapshot(self, watermarks: Watermarks) -> Callable[[Path], Snapshot]:
        """Copies the current state; returns what writes the copy to a folder, which is made, from
        any thread."""
        state, version = self.copy(), self.position.step

        def write_to(directory: Path) -> Snapshot:
            directory.mkdir(parents=True, exist_ok=True)
            files = write(state, directory)
            return Snapshot(files=files, watermarks=watermarks, version=version)

        return write_to

    def outgoing(self) -> tuple[dict[str, Any], list[Bytes]]:
        """See :class:`~torch_edl.engine.ring.replicated.SharedReplica`."""
        state = self.state()
        return state.header, [as_bytes(each.cpu()).numpy() for each in state.tensors.values()]

    def incoming(self, header: dict[str, Any]) -> tuple[list[Bytes], Callable[[], None]]:
        """See :class:`~torch_edl.engine.ring.replicated.SharedReplica`."""
        received = {
            name: torch.empty(shape, dtype=getattr(torch, dtype))
            for name, dtype, shape in header["tensors"]
        }
        places = [as_bytes(each).numpy() for each in received.values()]
        return places, lambda: self.load(State(header, received))

    def load(self, state: State, where: object = "the saved state") -> None:
        """Takes over a state without its tables; the parameters keep their place in memory.

        Args:
            where: what the state was read from, for messages.

        Raises:
            CheckpointError: the state is of another model or optimizer.
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
        self.position = Position(**header["position"])

    def load_model(
        self, values: Mapping[str, torch.Tensor], where: object = "the saved state"
    ) -> None:
        """Takes over the values of a model alone.

        Raises:
            CheckpointError: the values are of another model.
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
        """Loads a checkpoint, or the values of an exported model.

        Args:
            values_only: load the values of the model alone; a checkpoint of servers will do, too.

        Returns:
            The manifest of a checkpoint that was loaded whole; None: values alone were loaded.

        Raises:
            CheckpointError: the checkpoint is damaged, or of servers or another model.
        """
        source = CheckpointReader(folder, values_only=values_only, on_servers=False)
        own = {module.table for module in self.tables}
        whole = layout.is_checkpoint(folder) and not values_only
        if whole:
            self.load(read(folder, own), folder)
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

    def digest(self) -> int:
        """A 32-bit checksum of all parameters, bit by bit."""
        value = 0
        for parameter in self.model.parameters():
            raw = parameter.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
            value = zlib.crc32(raw.numpy(), value)  # type: ignore[arg-type]
        return value

    def _values(self) -> dict[str, torch.Tensor]:
        """The tensors of the model's ``state_dict`` themselves, without the rows of tables."""
        if self.tables:  # their rows would be gathered by state_dict()
            names = dense_names(self.model)
            return {name: getattr(module, key).detach() for name, module, key, _ in names}
        return {
            name: value.detach()
            for name, value in self.model.state_dict(keep_vars=True).items()
            if isinstance(value, torch.Tensor)
        }


def write(state: State, folder: Path) -> dict[str, int]:
    """Writes the copy of a state into a folder; returns file name to size in bytes.

    The file of the model is a plain ``state_dict`` in safetensors.

    Raises:
        UsageError: a tensor has a type that cannot be written.
        OSError: the disk is full or read-only.
    """
    slots = {n: t for n, t in state.tensors.items() if not n.startswith("model.")}
    header = {key: value for key, value in state.header.items() if key != "tensors"}
    return {
        **files.write_tables(state.tables, folder, STEM),
        MODEL_FILE: _write_file(folder / MODEL_FILE, state.model, {"format": "pt"}),
        OPTIMIZER_FILE: _write_file(folder / OPTIMIZER_FILE, slots, {"state": json.dumps(header)}),
    }


def read(folder: Path, without: Collection[str] = ()) -> State:
    """The inverse of :func:`write`; tables are in it as :func:`read_model` says.

    Raises:
        CheckpointError: the folder holds something else.
    """
    model, optimizer = read_model(folder, without), _read_file(folder / OPTIMIZER_FILE)
    return State(header(folder), {f"model.{n}": t for n, t in model.items()} | optimizer)


def read_model(folder: Path, without: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """The ``state_dict`` of a model: of a checkpoint of any strategy, or of an exported model.

    The rows of tables are in it as :mod:`torch_edl.nn.rows` says.

    Args:
        without: names of tables that are left out.

    Raises:
        CheckpointError: the folder is neither, or damaged.
    """
    source = CheckpointReader(folder, values_only=True)
    if layout.is_checkpoint(folder) and source.manifest.on_servers:
        values = {name: torch.from_numpy(value) for name, value in source.dense()[0].items()}
    else:  # with types that numpy does not have
        name = MODEL_FILE if layout.is_checkpoint(folder) else layout.EXPORTED_MODEL
        values = _read_file(folder / name)
    for name in without:
        values.pop(f"{name}.weight", None)  # a plain weight there, a table here
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


def _write_file(path: Path, tensors: Mapping[str, torch.Tensor], about: dict[str, str]) -> int:
    """Writes contiguous tensors on the CPU; returns the size in bytes."""
    found = {}
    for name, tensor in tensors.items():
        dtype = files.NAMES.get(str(tensor.dtype).removeprefix("torch."))
        if dtype is None:
            raise UsageError(f"{name}: {tensor.dtype} cannot be written to a checkpoint")
        found[name] = files.Tensor(dtype, tuple(tensor.shape), as_bytes(tensor).numpy())
    return files.write(path, found, about)


def _read_file(path: Path) -> dict[str, torch.Tensor]:
    made = {}
    for name, found in files.read_tensors(path).items():
        # In memory that torch aligns: the last bit of a sum over a vector depends on that.
        made[name] = torch.empty(found.shape, dtype=getattr(torch, files.TYPES[found.dtype]))
        as_bytes(made[name]).copy_(torch.from_numpy(found.content))
    return made


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, one-dimensional; of a copy, unless it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
