"""Averages gradients over a ring while backward still runs: flat buckets, one collective each.

The idea is DistributedDataParallel's (Li et al., PyTorch Distributed, VLDB 2020); this one can be
given another ring without being built anew, weighs each member by its records, gathers several
minibatches into one update, and lets a failed collective end in a flag rather than in the user's
backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

import torch
from torch import nn

from torch_edl.engine.ring.buckets import Bucket, make_buckets
from torch_edl.engine.ring.process_group import ProcessGroup, RingBrokenError
from torch_edl.errors import UsageError

# A sum of shares that rounding left of 1.
_WHOLE = 1 - 1e-3

_NORMS = (nn.modules.batchnorm._NormBase,)


class Phase(Enum):
    """What the end of a backward does."""

    IDLE = auto()
    """Nothing: gradients stay as they are."""
    GATHER = auto()
    """More minibatches of this update follow: gradients are put aside, weighted. Those of the
    newest backward stay at the parameters, to look at, until the next phase begins."""
    REDUCE = auto()
    """The last one: gradients are summed over the ring."""


class Reducer:
    """The gradients of a model's parameters.

    Args:
        model: its parameters that require gradients when this is made.

    After a backward in the phase ``REDUCE`` (or :meth:`reduce_nothing`) ``p.grad`` is the sum over
    all members of ``share * gradient``; None where no member has one. ``broken`` tells that the
    ring failed instead: then gradients are this member's own, until the next phase begins.
    """

    def __init__(self, model: nn.Module) -> None:
        self._phase = Phase.IDLE
        self.share = 1.0
        """Of this minibatch in the update: its records over those of all members together."""
        self.broken = ""
        """Why the ring failed; empty: it did not."""
        self.reduced = False
        self.lead = True
        """Running statistics of normalisation are this member's (the first with records)."""
        self._group: ProcessGroup | None = None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._known = {id(parameter) for parameter in self._parameters}
        self._buffers = [
            buffer
            for module in model.modules()
            if isinstance(module, _NORMS)
            for buffer in (module.running_mean, module.running_var)
            if buffer is not None
        ]
        self._norms = [
            buffer
            for module in model.modules()
            if isinstance(module, _NORMS)
            for buffer in module.buffers(recurse=False)
        ]
        self._norms_before = [buffer.clone() for buffer in self._norms]
        self._gathered = False
        self._kept = False  # gradients at the parameters are there to look at only
        self._leaves_fresh = False
        self.shares = 1.0
        """Of the records of the update before: those that gave a gradient, in any member."""
        self._touched: set[int] = set()  # in this backward
        self._used: set[int] = set()  # in those gathered before
        self._in_backward = False
        self._old: dict[int, tuple[torch.Tensor, int]] = {}  # see expect_fresh
        self._next = 0
        self._works: list[Any] = []
        self._buckets: list[Bucket] = []
        self._place: dict[int, tuple[int, int]] = {}
        self._lanes = 0
        self._hooked = False
        self.fill_lanes: Callable[[torch.Tensor], None] = lambda lanes: None
        """Called before the last collective begins; writes this member's numbers, float32."""
        self.refuse: Callable[[list[float]], str] = lambda lanes: ""
        """Called with their sums over all members; a text undoes the update."""

    @property
    def phase(self) -> Phase:
        """What the end of the next backward does."""
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase
        self._in_backward = False  # one that raised did not come to its end
        if self._kept:
            self.drop()
        if phase is not Phase.IDLE:
            self._listen()
        if phase is Phase.GATHER and not self._leaves_fresh:
            self._leaves_fresh = True
            for p in self._parameters:
                p.register_hook(self._before_hook(p))  # type: ignore[no-untyped-call]

    def _listen(self) -> None:
        # Hooks cost microseconds in each step, which a process that is alone need not pay.
        if not self._hooked:
            self._hooked = True
            for number, p in enumerate(self._parameters):
                p.register_post_accumulate_grad_hook(self._hook(number))  # type: ignore[no-untyped-call]

    def expect_fresh(self) -> None:
        """No optimizer took the gradients of this update: the next backward is not to add to them.

        A ring that breaks in between would lose them, and who joins has none; where nothing else
        is lost, a job counts an update for each batch.
        """
        self._old = {
            number: (p.grad, p.grad._version)
            for number, p in enumerate(self._parameters)
            if p.grad is not None
        }
        self._listen()

    def use(self, group: ProcessGroup | None, lanes: int) -> None:
        """From now on with this ring; None: alone. ``lanes``: how many numbers travel along."""
        self._group = group
        if group is not None and (not self._buckets or lanes != self._lanes):
            self._lanes = lanes
            self._make_buckets()
        self.restart()

    def restart(self) -> None:
        """Forgets what was gathered and reduced; gradients that are views of buckets too."""
        self.broken, self.reduced = "", False
        self._gathered = self._in_backward = False
        self._touched.clear()
        self._used.clear()
        self._works.clear()
        self._next = 0
        for bucket in self._buckets:
            bucket.pending = len(bucket.parameters)

    def keep_norms(self) -> None:
        """Notes the running statistics, before an update."""
        with torch.no_grad():
            for kept, buffer in zip(self._norms_before, self._norms, strict=True):
                kept.copy_(buffer)

    def undo_norms(self) -> None:
        """Takes back what the forwards of an update did to them."""
        with torch.no_grad():
            for kept, buffer in zip(self._norms_before, self._norms, strict=True):
                buffer.copy_(kept)

    def drop(self) -> None:
        """No gradients: an optimizer that steps now changes nothing."""
        self._kept = False
        for parameter in self._parameters:
            parameter.grad = None

    def hide(self) -> Callable[[], None]:
        """No gradients until what is returned is called, and puts them back."""
        hidden, kept = [parameter.grad for parameter in self._parameters], self._kept
        self.drop()

        def show() -> None:
            self._kept = kept
            for parameter, gradient in zip(self._parameters, hidden, strict=True):
                parameter.grad = gradient

        return show

    def check_known(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Raises UsageError if an optimizer is about to move a parameter that is not summed."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None and id(parameter) not in self._known:
                        raise UsageError(
                            f"a parameter of shape {tuple(parameter.shape)} has a gradient and did "
                            "not have requires_grad at job.prepare(), so its gradient is this "
                            "process's own; unfreeze it before prepare()"
                        )

    def reduce_nothing(self) -> None:
        """Takes part in the collectives of this update without a gradient of one's own."""
        self.phase, self.share = Phase.REDUCE, 0.0
        self._finish_backward()

    def _make_buckets(self) -> None:
        # Who has a gradient of what, the sum of shares, the caller's numbers, running statistics.
        extra = len(self._parameters) + 1 + self._lanes + sum(b.numel() for b in self._buffers)
        self._buckets, self._place = make_buckets(self._parameters, extra)

    # ---- backward ----

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        # What the tensor's hooks hold is not found by the garbage collector: a model and its
        # gradients would keep each other for ever.
        me = weakref.ref(self)

        def ready(parameter: torch.Tensor) -> None:
            gradients = me()
            if gradients is not None:
                gradients._ready(number, parameter)

        return ready

    def _before_hook(self, parameter: torch.Tensor) -> Callable[[torch.Tensor], None]:
        me, weak = weakref.ref(self), weakref.ref(parameter)

        def coming(_: torch.Tensor) -> None:
            gradients, leaf = me(), weak()
            # Another backward of the same minibatch: what the one before gave is put aside.
            if gradients is not None and leaf is not None and gradients._kept:
                leaf.grad = None

        return coming

    def _ready(self, number: int, parameter: torch.Tensor) -> None:
        if self._old:
            self._check_fresh(number, parameter)
        if self._phase is Phase.IDLE:
            return
        if not self._in_backward:
            if self.reduced and self.shares < _WHOLE:
                raise UsageError(
                    "backward() was called again after the last batch of an update that "
                    "gathers several; add the losses up and call it once for each batch (a layer "
                    "that is computed again, with checkpoint(), needs use_reentrant=False)"
                )
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish_backward)
        self._touched.add(number)
        if self.phase is Phase.REDUCE and self._group is not None and not self.broken:
            index, slot = self._place[number]
            bucket = self._buckets[index]
            self._put(parameter, bucket.views[slot])
            bucket.pending -= 1
            if index == self._next and bucket.pending == 0:
                self._launch_full()

    def _check_fresh(self, number: int, parameter: torch.Tensor) -> None:
        old, version = self._old.get(number, (None, 0))
        self._old = {}
        # Backward added to what was there, and nobody set it to zero in between.
        if parameter.grad is old and old is not None and old._version == version + 1:
            raise UsageError(
                "backward() was called again and no optimizer took the gradients of the batch "
                "before: gradients gathered by hand are lost when a ring changes, and each batch "
                "counts as an update; use job.loader(..., accumulate=N) or global_batch_size= (on "
                "parameter servers a larger batch_size) and step after each batch"
            )

    def _put(self, parameter: torch.Tensor, view: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if gradient.requires_grad:
            gradient = gradient.detach()  # of backward(create_graph=True)
        if self._gathered:
            view.add_(gradient, alpha=self.share)
        elif self.share:
            torch.mul(gradient, self.share, out=view)
        else:
            view.zero_()  # zero times what is not finite would be no zero

    def _launch_full(self) -> None:
        """Begins the collectives of full buckets, in the one order that all members have."""
        assert self._group is not None
        # The last one carries the lanes, which are filled at the end.
        while self._next < len(self._buckets) - 1 and not self._buckets[self._next].pending:
            self._launch()

    def _launch(self) -> None:
        assert self._group is not None
        try:
            self._works.append(self._group.allreduce(self._buckets[self._next].flat))
        except RingBrokenError as error:
            self._fail(str(error))
        self._next += 1

    def _fail(self, why: str) -> None:
        # Only the text: a traceback would keep the ring's sockets open, and others waiting.
        if not self.broken:
            self.broken = why

    def _finish_backward(self) -> None:
        self._in_backward = False
        if self.broken:
            self.reduced = False
            self._touched.clear()
            self._kept = True
            return
        if self.phase is Phase.GATHER:
            self._gather()
        elif self._group is not None:
            self._reduce(self._group)
        else:
            self._add_up()
        self.reduced = self.phase is Phase.REDUCE and not self.broken
        self._touched.clear()

    def _gather(self) -> None:
        """Puts the gradients of one minibatch aside, weighted."""
        if not self._buckets:
            self._make_buckets()
        for number, parameter in enumerate(self._parameters):
            index, slot = self._place[number]
            view = self._buckets[index].views[slot]
            own = parameter.grad
            if number in self._touched:
                self._put(parameter, view)
            elif not self._gathered:
                view.zero_()
            if own is not None and not own.is_sparse and own.data_ptr() == view.data_ptr():
                # Of the update before: what the script does to it is not to reach the bucket.
                parameter.grad = own.clone() if number in self._touched else None
        self._gathered = self._kept = True
        self._used |= self._touched

    def _add_up(self) -> None:
        """Alone: the gathered minibatches and this one."""
        if not self._buckets:
            self._make_buckets()
        used = self._touched | self._used
        for number, parameter in enumerate(self._parameters):
            index, slot = self._place[number]
            view = self._buckets[index].views[slot]
            if number in self._touched:
                self._put(parameter, view)
            parameter.grad = view if number in used else None
        self.shares = 0.0
        self._gathered = False
        self._used.clear()

    def _reduce(self, group: ProcessGroup) -> None:
        for number, parameter in enumerate(self._parameters):
            if number in self._touched:
                continue
            index, slot = self._place[number]
            bucket = self._buckets[index]
            if self.share and parameter.grad is not None:
                # Of an earlier backward of this update: it stays what it is, summed over shares.
                self._put(parameter, bucket.views[slot])
            elif not self._gathered:
                bucket.views[slot].zero_()
            bucket.pending -= 1
        last = self._buckets[-1]
        count = len(self._parameters)
        used, lanes = last.extra[: count + 1], last.extra[count + 1 : count + 1 + self._lanes]
        statistics = last.extra[count + 1 + self._lanes :]
        last.extra.zero_()
        has = [
            float(
                n in self._used or (self.share > 0 and (n in self._touched or p.grad is not None))
            )
            for n, p in enumerate(self._parameters)
        ]
        used.copy_(torch.tensor([*has, self.share]))
        self.fill_lanes(lanes)
        if self.lead and self._buffers:
            statistics.copy_(torch.cat([b.detach().reshape(-1).float() for b in self._buffers]))
        while self._next < len(self._buckets) and not self.broken:
            self._launch()
        try:
            group.wait(self._works)
        except RingBrokenError as error:
            self._fail(str(error))
        self._works.clear()
        self._next = 0
        self._gathered = False
        self._used.clear()
        for bucket in self._buckets:
            bucket.pending = len(bucket.parameters)
        if not self.broken:
            self._take(last, count, statistics)
        self._kept = bool(self.broken)

    def _take(self, last: Bucket, count: int, statistics: torch.Tensor) -> None:
        numbers = last.extra[: count + 1 + self._lanes].tolist()
        self.shares = numbers[count]
        self.broken = self.refuse(numbers[count + 1 :])
        if self.broken:
            return
        for number, parameter in enumerate(self._parameters):
            index, slot = self._place[number]
            parameter.grad = self._buckets[index].views[slot] if numbers[number] else None
        start = 0
        for buffer in self._buffers:
            buffer.copy_(statistics[start : start + buffer.numel()].view(buffer.shape))
            start += buffer.numel()
