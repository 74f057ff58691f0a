"""All that makes one member of a ring equal to another: model, optimizer, and how far it is.

A replica can be described (a header of plain JSON, and tensors in a fixed order), sent, written
and taken over. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from torch_edl.checkpoint import layout
from torch_edl.checkpoint.reader import CheckpointReader
from torch_edl.engine import same_model
from torch_edl.engine import state_dict as nested
from torch_edl.engine.position import Position
from torch_edl.errors import CheckpointError
from torch_edl.nn import table_state

MODEL_FILE = "shard-0-of-1.dense.safetensors"
OPTIMIZER_FILE = "shard-0-of-1.optimizer.safetensors"
# How a dict whose keys are no texts is written.
_PAIRS, _COUNTS = "__pairs__", "__counts__"


@dataclass(frozen=True)
class State:
    """A replica at one moment."""

    header: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    """``model.NAME`` and ``optimizer.I.PARAMETER.SLOT``."""


class Replica:
    """The parts of a training script that every member holds alike.

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

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def state(self) -> State:
        """What there is now: the tensors themselves, not copies.

        Raises:
            UsageError: an optimizer or another part keeps what can be neither sent nor written.
        """
        header: dict[str, Any] = {"position": vars(self.position).copy(), "optimizers": []}
        tensors = {f"model.{name}": value for name, value in _values(self.model).items()}
        for number, optimizer in enumerate(self.optimizers):
            slots, rest = flatten_optimizer(optimizer.state_dict(), type(optimizer).__name__)
            header["optimizers"].append(rest)
            tensors |= {f"optimizer.{number}.{name}": slot for name, slot in slots.items()}
        header["stateful"] = [
            jsonable(part.state_dict(), type(part).__name__) for part in self.stateful
        ]
        header["tensors"] = [
            [name, str(value.dtype).removeprefix("torch."), list(value.shape)]
            for name, value in tensors.items()
        ]
        return State(header, tensors)

    def load(self, state: State) -> None:
        """Becomes what ``state`` says; the parameters keep their place in memory.

        Raises:
            CheckpointError: it is of another model or optimizer.
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
            _check_groups(optimizer.state_dict()["param_groups"], rest["groups"])
        values = {n[6:]: t for n, t in tensors.items() if n.startswith("model.")}
        self.load_model(values)
        own = _values(self.model)
        same_types = all(own[name].dtype == value.dtype for name, value in values.items())
        for number, optimizer in enumerate(self.optimizers):
            prefix = f"optimizer.{number}."
            slots = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            given = unflatten_optimizer(slots, header["optimizers"][number])
            optimizer.load_state_dict(given)
            if same_types:
                nested.undo_casts(optimizer, given["state"])
        for part, values in zip(self.stateful, header["stateful"], strict=True):
            part.load_state_dict(from_json(values))
        self.position = Position(**header["position"])

    def load_model(
        self, values: Mapping[str, torch.Tensor], where: object = "the saved state"
    ) -> None:
        """Takes over the values of a model alone.

        Args:
            where: they are from, for messages.

        Raises:
            CheckpointError: it is of another model.
        """
        own = _values(self.model)
        same_model.check(
            {name: value.shape for name, value in values.items()},
            {name: value.shape for name, value in own.items()},
            where=where,
        )
        with torch.no_grad():
            for name, value in values.items():
                own[name].copy_(value)

    def digest(self) -> int:
        """A 32-bit checksum of all parameters, bit by bit."""
        value = 0
        for parameter in self.model.parameters():
            raw = parameter.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
            value = zlib.crc32(raw.numpy(), value)  # type: ignore[arg-type]
        return value


def copied(state: State) -> State:
    """The same state in memory of its own, on the CPU: training may go on."""
    return State(
        json.loads(json.dumps(state.header)),
        {n: t.detach().to("cpu", copy=True).contiguous() for n, t in state.tensors.items()},
    )


def write(state: State, folder: Path) -> dict[str, int]:
    """Writes a copied state into a folder; file names to sizes in bytes.

    The model's file is a plain ``state_dict`` in safetensors.

    Raises:
        OSError: the disk refused.
    """
    model = {n[6:]: t for n, t in state.tensors.items() if n.startswith("model.")}
    slots = {n: t for n, t in state.tensors.items() if not n.startswith("model.")}
    safetensors.torch.save_file(model, folder / MODEL_FILE)
    header = {key: value for key, value in state.header.items() if key != "tensors"}
    safetensors.torch.save_file(
        slots, folder / OPTIMIZER_FILE, metadata={"state": json.dumps(header)}
    )
    return {name: os.path.getsize(folder / name) for name in (MODEL_FILE, OPTIMIZER_FILE)}


def read(folder: Path) -> State:
    """What :func:`write` wrote.

    Raises:
        CheckpointError: it is something else.
    """
    try:
        with safe_open(folder / OPTIMIZER_FILE, "pt") as file:
            header = json.loads((file.metadata() or {})["state"])
            # In memory of their own: in the file's they lie at any address, and sums over vectors
            # depend on that in the last bit.
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        if "position" not in header:
            raise CheckpointError(f"{folder}: not a checkpoint of the strategy allreduce")
        model = read_model(folder)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"{folder}: not a checkpoint that can be read: {error}") from error
    return State(header, {f"model.{n}": t for n, t in model.items()} | tensors)


def read_model(folder: Path) -> dict[str, torch.Tensor]:
    """The ``state_dict`` of a model: of a checkpoint of any strategy, or of an exported model.

    Tables are in it as :mod:`torch_edl.nn.table_state` says.

    Raises:
        CheckpointError: it is neither, or damaged.
    """
    source = CheckpointReader(folder, values_only=True)
    if layout.is_checkpoint(folder) and source.manifest.strategy == "ps":
        values = {name: torch.from_numpy(value) for name, value in source.dense()[0].items()}
    else:  # with types that numpy does not have
        file = folder / (MODEL_FILE if layout.is_checkpoint(folder) else layout.EXPORTED_MODEL)
        try:
            values = safetensors.torch.load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: {error}; it is damaged") from error
    for table in source.tables.values():
        if table.bound:
            values |= table_state.of_weight(table.modules, table.weight())
        else:
            found = [rows for _, rows in table.rows()]
            ids = np.concatenate([rows.ids for rows in found])
            vectors = np.concatenate([rows.vectors for rows in found])
            values |= table_state.of_rows(table.modules, ids, vectors)
    return values


def flatten_optimizer(
    state: dict[str, Any], owner: str = "the optimizer"
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state as named tensors, and the rest as what JSON can say.

    Tensors in lists, tuples and dicts are named by their path; the rest says which is where.

    Raises:
        UsageError: something in it is none of these; ``owner`` is the optimizer's name.
    """
    flat: dict[str, Any] = {}
    for index, slots in state["state"].items():
        if isinstance(index, int) and isinstance(slots, dict):
            for key, value in slots.items():
                if not isinstance(key, str):
                    raise nested.unsayable(owner, f"a key of {index}", key)
                flat[f"{index}.{key}"] = value
        elif isinstance(index, str):  # of no parameter
            flat[f".{index}"] = slots
        else:
            raise nested.unsayable(owner, repr(index), slots)
    tensors = {n: v for n, v in flat.items() if isinstance(v, torch.Tensor)}
    rest = {n: nested.flatten(v, n, tensors, owner) for n, v in flat.items() if n not in tensors}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise nested.unsayable(owner, name, tensor)
        tensors[name] = tensor.detach()
    return tensors, {"groups": jsonable(state["param_groups"], owner), "values": rest}


def unflatten_optimizer(
    tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]
) -> dict[str, Any]:
    """The inverse of :func:`flatten_optimizer`."""
    left = dict(tensors)  # those that stand in no list, tuple or dict
    values = {name: nested.unflatten(value, left) for name, value in rest["values"].items()}
    state: dict[int | str, Any] = {}
    for name, value in {**left, **values}.items():
        index, _, key = name.partition(".")
        if index:
            state.setdefault(int(index), {})[key] = value
        else:
            state[key] = value
    return {"state": state, "param_groups": from_json(rest["groups"])}


def jsonable(value: Any, owner: str = "the state", where: str = "") -> Any:
    """What JSON can say of a state: numbers, texts, lists; tensors of one number as numbers.

    Raises:
        UsageError: something in it is none of these; ``owner`` is whose state it is.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, dict):
        items = {k: jsonable(v, owner, f"{where}.{k}") for k, v in value.items() if not callable(v)}
        if all(isinstance(key, str) for key in items):
            return items
        # JSON would make texts of the keys: MultiStepLR counts its milestones by number.
        return {_PAIRS: [*map(list, items.items())], _COUNTS: isinstance(value, Counter)}
    if isinstance(value, list | tuple):
        return [jsonable(v, owner, f"{where}.{i}") for i, v in enumerate(value)]
    if not isinstance(value, nested.PLAIN):
        raise nested.unsayable(owner, where.lstrip("."), value)
    return value


def from_json(value: Any) -> Any:
    """The inverse of :func:`jsonable`, but for tuples and tensors of one number."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _PAIRS in value:
        items = {key: from_json(item) for key, item in value[_PAIRS]}
        return Counter(items) if value[_COUNTS] else items
    return {key: from_json(item) for key, item in value.items()}


def chunks(
    tensors: Sequence[torch.Tensor], limit_bytes: int
) -> Iterator[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Groups of tensors with one buffer of bytes for each, so that small ones travel together.

    The buffer holds the tensors of its group one after the other when it is given out. That of a
    single one is its own memory, if it is contiguous: large ones are not copied.

    Args:
        limit_bytes: of a group of several.
    """
    group: list[torch.Tensor] = []
    size = 0
    for tensor in [*tensors, None]:
        if group and (tensor is None or size + tensor.nbytes > limit_bytes):
            parts = [as_bytes(t) for t in group]
            yield parts[0] if len(parts) == 1 else torch.cat(parts), group
            group, size = [], 0
        if tensor is not None and tensor.numel():
            group.append(tensor)
            size += tensor.nbytes


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, one-dimensional; of a copy, unless it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def spread(buffer: torch.Tensor, group: Sequence[torch.Tensor]) -> None:
    """Copies a buffer of :func:`chunks` back into the (contiguous) tensors of its group."""
    start = 0
    for tensor in group:
        own = as_bytes(tensor)
        if own.data_ptr() != buffer.data_ptr() + start:
            own.copy_(buffer[start : start + tensor.nbytes])
        start += tensor.nbytes


def _check_groups(own: list[dict[str, Any]], saved: list[dict[str, Any]]) -> None:
    sizes = [[len(group["params"]) for group in groups] for groups in (own, saved)]
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            f"it is of another optimizer: groups of {sizes[1]} parameters, here of {sizes[0]}"
        )
    for mine, theirs in zip(own, saved, strict=True):
        missing, extra = sorted(mine.keys() - theirs.keys()), sorted(theirs.keys() - mine.keys())
        # Another version of torch may know more options, or fewer; another optimizer has others.
        if missing and extra:
            raise CheckpointError(f"it is of another optimizer: it lacks {missing}, has {extra}")


def _values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: value.detach()
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, torch.Tensor)
    }
