"""Everything that relies on the internals of torch, and may break with another version of torch.

Each part names its reason, the source or the issue of torch, and the test that fails if torch
changes. The class of a table's weight, which :mod:`torch_edl.nn` needs below this package, is in
:mod:`torch_edl.nn.embedding`. Last checked with torch 2.13.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.distributed
from torch import nn

from torch_edl.errors import UsageError
from torch_edl.nn.embedding import TableWeight
from torch_edl.ps_client.partition import Floats

# The compiled parts of torch.distributed have no types.
dist: Any = torch.distributed

# No time limit for collectives, since a member may evaluate for an hour. The master knows which
# members are alive and ends a stuck collective.
_COLLECTIVE_S = 7 * 24 * 3600.0
# Settings of NCCL's threads in torch, for groups of this module.
_NCCL_THREADS = {
    # The watchdog does not end this process when another member dies.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # Nothing is written to a disk, and this process is not ended after that.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # The watchdog waits four times this long after an error; the end of a group waits for it.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
_grad: Any = torch.Tensor.grad


# ---- import ----


_COMPILER = "torch._dynamo"


class _DeferredCompiler(ModuleType):
    """Stands for ``torch._dynamo`` until a caller needs more than to mark code that is not to be
    compiled. Every other name imports torch's compiler, which then takes the place of this one."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(_COMPILER)
        # What finds modules by their file, such as inspect, need not import the compiler.
        self.__spec__, self.__file__ = spec, spec.origin
        self._eager: list[Any] = []

    def graph_break(self, msg: str = "") -> None:
        """Do nothing: no code is compiled yet."""

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """Return the function itself to ``torch._disable_dynamo``, which keeps the answer."""
        if options != {"wrapping": False}:  # another caller
            return self._import().disable(fn, recursive, **options)
        self._eager.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # __path__: a submodule is imported
            raise AttributeError(f"module {_COMPILER!r} has no attribute {name!r}")
        return getattr(self._import(), name)

    def _import(self) -> Any:
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
            vars(torch).pop("_dynamo", None)
        compiler = importlib.import_module(_COMPILER)
        while self._eager:  # the next call asks the compiler
            vars(self._eager.pop()).pop("__dynamo_disable", None)
        return compiler


def defer_compiler() -> None:
    """Import torch's compiler not before something is compiled. The import takes as much CPU as
    that of the rest of torch.

    Otherwise the first step of an optimizer imports ``torch._dynamo``: methods of ``Optimizer`` are
    decorated with ``torch._disable_dynamo`` (``torch/_compile.py``), and its steps call
    ``graph_break`` (``torch/optim/optimizer.py``); github.com/pytorch/pytorch/pull/127325. If torch
    uses other names one day, their use imports the compiler, as it does without this function. The
    tests are in ``tests/unit/pytorch/test_torch_internals.py``.
    """
    if _COMPILER not in sys.modules:
        spec = importlib.util.find_spec(_COMPILER)
        if spec is not None:
            compiler: Any = _DeferredCompiler(spec)
            sys.modules[_COMPILER] = torch._dynamo = compiler


# ---- autograd ----


def after_backward(callback: Callable[[], None]) -> None:
    """Call a function once at the end of the backward pass that runs now.

    torch has no public way: github.com/pytorch/pytorch/issues/66199, and the pull request 193958
    for ``torch.autograd.graph.queue_callback`` was closed. DistributedDataParallel and FSDP use the
    same method. The tests are in ``tests/unit/pytorch/ring/test_reducer.py``.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def change_count(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; 0 for tensors of inference mode.

    ``Tensor._version`` is the counter by which autograd rejects changed tensors
    (``VariableVersion`` in ``c10/core/TensorImpl.h``). Autograd adds to an existing gradient in
    place, which counts as one change. The tests are
    ``test_adding_to_gradients_that_no_optimizer_took_is_found_once`` and
    ``test_a_late_change_of_features_in_place_is_refused``.
    """
    return 0 if tensor.is_inference() else tensor._version


def sums_gradients(module: nn.Module) -> bool:
    """Return True for DistributedDataParallel and FullyShardedDataParallel. The second is found by
    its name, since its import takes most of a second. The tests are in
    ``tests/unit/api/test_prepare.py``."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return True
    return any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return True for a DTensor of ``torch.distributed.tensor``, found by its name as above."""
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)


NORMALIZATIONS = (nn.modules.batchnorm._NormBase,)
"""Base class of the layers with running statistics. torch has no public one
(``torch/nn/modules/batchnorm.py``). The test is
``test_running_statistics_of_a_failed_update_are_restored``."""


DROPOUTS = (nn.modules.dropout._DropoutNd,)
"""Base class of the layers that draw random numbers in training. torch has no public one
(``torch/nn/modules/dropout.py``). The test is
``test_a_planning_run_draws_no_random_numbers``."""


# ---- the gradient of a table ----


class RowGradients(Protocol):
    """The rows of tables on servers, which :mod:`torch_edl.pytorch.servers.rows` has above this
    module."""

    def gradient(self, table: str) -> Floats | None: ...
    def drop_gradient(self, table: str) -> None: ...


def show_row_gradients(weight: nn.Parameter, table: str, rows: RowGradients) -> None:
    """Make ``grad`` of a table's parameter return the gradients of the rows in use.

    The class of the parameter is replaced: optimizers, clipping and gradient scalers hold the
    parameter itself, so that another object could not take its place, and torch gives a parameter
    no hook on the access of ``grad`` (github.com/pytorch/pytorch/issues/65018). The test is
    ``test_a_gradient_that_is_dropped_is_not_pushed``.
    """
    shown: Any = weight
    shown.__class__ = TableParameter
    shown.table, shown.rows = table, rows


def drop_empty_gradients(weights: Sequence[nn.Parameter]) -> None:
    """Clear the gradients of tables' parameters, so that the optimizer does not step them: each
    would take an optimizer as much time as a large parameter, for no element."""
    with torch._C.DisableTorchFunctionSubclass():
        for weight in weights:
            weight.grad = None


class TableParameter(TableWeight):
    """The empty parameter of a table on servers, whose ``grad`` is that of the rows in use."""

    table: str
    rows: RowGradients

    @property
    def grad(self) -> torch.Tensor | None:
        """Gradient (n, dim) of the rows that were looked up; None after it was taken."""
        rows = self.__dict__.get("rows")
        if rows is None:  # a copied parameter
            own: torch.Tensor | None = _grad.__get__(self)
            return own
        gradient = rows.gradient(self.table)
        return None if gradient is None else torch.from_numpy(gradient)

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _grad.__set__(self, None)
        rows = self.__dict__.get("rows")
        if rows is None:
            return
        if value is None:
            rows.drop_gradient(self.table)
            return
        own = self.grad
        if own is None or own.shape != value.shape or value.is_sparse:
            raise UsageError(
                f"table {self.table}: its gradient is that of the rows of this batch, "
                f"{None if own is None else tuple(own.shape)}; it cannot become a tensor "
                f"{tuple(value.shape)}"
            )
        own.copy_(value.detach())


# ---- schedulers and scalers ----


def has_scheduler(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer has a scheduler of learning rates.

    Every scheduler of torch wraps the ``step`` of its optimizer to warn of a wrong order of calls
    (``LRScheduler.__init__`` in ``torch/optim/lr_scheduler.py``;
    github.com/pytorch/pytorch/pull/20203) and marks the wrapper. The test is
    ``test_a_scheduler_that_the_job_was_not_given_is_refused``.
    """
    return hasattr(optimizer.step, "_wrapped_by_lr_sched")


def gate(part: Any, names: tuple[str, ...], is_live: Callable[[], bool]) -> None:
    """Make methods of a scheduler, a scaler or another object do nothing while ``is_live`` returns
    False.

    Schedulers and scalers have no hooks around ``step``
    (github.com/pytorch/pytorch/issues/67590), so that methods of the object are replaced. The state
    of a scheduler consists of all its attributes, also those set here, which ``state_dict`` leaves
    out. The test is ``test_a_schedule_counts_updates_and_its_state_can_be_pickled``.
    """
    for name in names:
        setattr(part, name, _gated(getattr(part, name), is_live))
    state_dict, hidden = part.state_dict, {*names, "state_dict"}

    def own_state(*args: Any, **kwargs: Any) -> Any:
        return {k: v for k, v in state_dict(*args, **kwargs).items() if k not in hidden}

    part.state_dict = own_state


def _gated(method: Callable[..., Any], is_live: Callable[[], bool]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs) if is_live() else None

    return call


def before_step(scaler: Any, method: Callable[[], None]) -> None:
    """Call a method before each ``step`` of a scaler, which may skip the step of the optimizer and
    therefore its hooks (github.com/pytorch/pytorch/issues/67590).

    The test is ``test_a_broken_step_changes_nothing_and_its_batch_comes_again``.
    """
    step = scaler.step

    def noted(*args: Any, **kwargs: Any) -> Any:
        method()
        return step(*args, **kwargs)

    scaler.step = noted


def take_step(scheduler: Any) -> Callable[[], None]:
    """Make ``step`` of a scheduler do nothing, and return the original method.

    The test is ``test_the_users_scheduler_sets_the_rate``.
    """
    step: Callable[[], None] = scheduler.step
    scheduler.step = lambda *_, **__: None
    return step


# ---- process groups ----
#
# Gloo's ``abort`` and ``shutdown`` do not end a stuck operation
# (github.com/pytorch/pytorch/issues/130345, github.com/pytorch/gloo/pull/388), and a member that
# waits keeps the others waiting. Gloo's sockets are therefore found in /proc and shut down, which
# ends the operation at both ends. The tests are in tests/unit/pytorch/ring/test_process_group.py:
# test_interrupt_ends_a_collective_with_a_stopped_peer and
# test_no_socket_of_a_broken_ring_stays_open_while_its_error_is_handled.


def make_gloo(store: Any, rank: int, size: int, host: str, meet_s: float) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    # Timeout of the connections; the timeout of collectives is set below.
    options._timeout = timedelta(seconds=meet_s)
    group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, options)
    group._set_default_timeout(timedelta(seconds=_COLLECTIVE_S))
    return group


def make_nccl(store: Any, rank: int, size: int, device: torch.device, meet_s: float) -> Any:
    """Return a group of NCCL whose members have connected.

    NCCL connects at the first collective, which nothing can interrupt until all members are there.
    A thread calls it, and is left behind if a member does not come.

    Raises:
        RuntimeError: a member did not connect.
        UsageError: two members of one machine have the same GPU.
    """
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=_COLLECTIVE_S)
    with _environment(_NCCL_THREADS):
        group = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
    failures: list[str] = []

    def connect() -> None:
        try:
            group.allreduce([torch.zeros(1, device=device)]).wait()
            torch.cuda.current_stream(device).synchronize()
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=connect, name="nccl-connect", daemon=True)
    thread.start()
    thread.join(meet_s)
    if thread.is_alive():
        threading.Thread(target=group.abort, name="nccl-end", daemon=True).start()
        raise RuntimeError(f"NCCL: a member did not connect within {meet_s:g} s")
    if failures:
        if "Duplicate GPU" in failures[0]:
            raise UsageError(
                f"several processes of this machine train on {device}, and NCCL needs a GPU for "
                "each; start as many processes as there are GPUs, each with its own device "
                "(torch.cuda.set_device(LOCAL_RANK)), or use --strategy ps"
            )
        raise RuntimeError(failures[0])
    return group


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the ``with`` block. Groups that the script creates follow the
    script's environment."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def sockets() -> dict[int, str]:
    """Return the file descriptors of sockets, with the kernel's identity of each socket."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def still_open(names: Mapping[int, str]) -> list[int]:
    """Return the descriptors that still refer to the same sockets; the kernel reuses numbers."""
    now = sockets()
    return [fd for fd, name in names.items() if now.get(fd) == name]


def is_listening(fd: int) -> bool:
    """Return True for a listening socket. Gloo ends the process if its own is shut down."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
        return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return False


def is_connection(fd: int, *, besides: int) -> bool:
    """Return True for a TCP connection, except one to the store, which other rings may need."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as one:
        if one.family in (socket.AF_INET, socket.AF_INET6):
            return besides not in (one.getpeername()[1], one.getsockname()[1])
    return False


def shut_down(fd: int) -> None:
    with socket.socket(fileno=os.dup(fd)) as one:
        one.shutdown(socket.SHUT_RDWR)
