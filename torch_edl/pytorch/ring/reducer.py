"""Sum gradients over a ring while backward is running: flat buckets, one collective for each.

The method is that of DistributedDataParallel (Li et al., PyTorch Distributed, VLDB 2020). In
addition, this reducer can switch to another ring without being rebuilt, weights each member by its
records, accumulates several minibatches into one update, and reports a failed collective by its
phase instead of an exception in the user's backward.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from torch_edl.engine.ring.replicated import GradientReducer, Phase, Receive, RingBrokenError, Send
from torch_edl.errors import UsageError
from torch_edl.pytorch.gradient_hooks import ManualAccumulation, are_finite, on_step, weak_hook
from torch_edl.pytorch.replica import Replica
from torch_edl.pytorch.ring.buckets import Bucket, RunningStatistics, make_buckets
from torch_edl.pytorch.ring.process_group import ProcessGroup, Wait
from torch_edl.pytorch.torch_internals import after_backward

_COLLECTING = (Phase.ACCUMULATE, Phase.ACCUMULATED, Phase.REDUCE, Phase.REDUCED)


class Reducer(GradientReducer):
    """Reduces the gradients of a model's parameters that require gradients now.

    After a backward in the phase ``REDUCE``, or after :meth:`reduce_nothing`, ``p.grad`` is the sum
    over all members of ``share * gradient``, or None if no member has a gradient.

    Args:
        controls: number of control numbers that are summed together with the gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        controls: int = 0,
        send: Send = lambda: (),
        receive: Receive = lambda sums: "",
    ) -> None:
        super().__init__(send, receive)
        self._controls = controls
        self._group: ProcessGroup | None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._numbers = {id(parameter): n for n, parameter in enumerate(self._parameters)}
        self._statistics = RunningStatistics(model)
        self._accumulation = ManualAccumulation(model)
        self._hidden: list[torch.Tensor | None] = []
        """Gradients that are hidden from an optimizer while it steps."""
        self._touched: set[int] = set()
        """Indices of the parameters that received a gradient in the current backward."""
        self._accumulated: set[int] = set()
        """Indices of the parameters with accumulated gradients of earlier minibatches."""
        self._waits: list[Wait] = []
        self._buckets: list[Bucket] = []
        self._places: list[tuple[Bucket, torch.Tensor]] = []
        self._next = 0  # index of the bucket to be reduced next
        self._listens = self._clears = False
        self._checks = False
        self._finite: list[torch.Tensor] = []
        """Whether the gradients of this member are finite, for each bucket that was launched."""
        self._infinite = [0.0, 0.0]
        """Number of members whose gradients of the current update are not finite, and the sum of
        their ranks."""

    # ---- an update ----

    def begin_minibatch(self, share: float, *, last: bool = True, leads: bool = True) -> None:
        super().begin_minibatch(share, last=last, leads=leads)
        self._touched.clear()  # left over if a backward raised
        if self.phase in (Phase.REDUCE, Phase.ACCUMULATE):
            self._accumulation.watch()  # must precede the hooks below, which change gradients
            self._make_buckets()
            self._add_hooks()

    def check_gradients(self) -> None:
        """Let :meth:`not_finite` return True for gradients that are not finite, from now on."""
        self._checks = True

    def use(self, group: ProcessGroup | None) -> None:
        if self._group is not None and self._group.stuck:
            self._buckets, self._places = [], []
        super().use(group)

    def clear_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def before_step(self, optimizer: Any, *, live: bool) -> None:
        if not live:
            # Optimizers skip parameters without a gradient.
            self._hidden = [parameter.grad for parameter in self._parameters]
            self.clear_gradients()
        elif self.phase in (Phase.REDUCED, Phase.LOCAL):
            self._check_reduced(optimizer)

    def after_step(self) -> None:
        hidden, self._hidden = self._hidden, []
        for parameter, gradient in zip(self._parameters, hidden, strict=False):
            parameter.grad = gradient

    def not_finite(self, optimizer: torch.optim.Optimizer) -> bool:
        # The sum tells the members whether to check their gradients again, which the script may
        # have set to zero in the meantime.
        if not self._checks or self.phase not in (Phase.LOCAL, Phase.REDUCED):
            return False
        if self._group is not None and not self._infinite[0]:
            return False
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return not bool(are_finite([p.grad for p in parameters if p.grad is not None]))

    @property
    def at_fault(self) -> int | None:
        members, ranks = self._infinite if self._group is not None else (1.0, 0.0)
        return int(ranks) if members == 1.0 else None

    def forbid_accumulation(self) -> None:
        self._accumulation.forbid()

    def _check_reduced(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise UsageError if an optimizer is about to update a parameter that is not reduced."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in self._numbers:
                    raise UsageError(
                        f"a parameter of shape {tuple(parameter.shape)} has a gradient and was "
                        "not trained at job.prepare() (it was frozen, or added later), so its "
                        "gradient is this process's own; unfreeze or add it before prepare()"
                    )

    def _save_buffers(self) -> None:
        self._statistics.save()

    def _restore_buffers(self) -> None:
        self._statistics.restore()

    def _reset(self) -> None:
        super()._reset()
        self._touched.clear()
        self._clear_buckets()

    def _clear_buckets(self) -> None:
        self._accumulated.clear()
        self._waits.clear()
        self._finite.clear()
        self._next = 0
        for bucket in self._buckets:
            bucket.reset()

    def _make_buckets(self) -> None:
        if not self._buckets:
            # A flag for each gradient, two sums of shares, control numbers, two numbers about
            # gradients that are not finite, running statistics.
            extra = len(self._parameters) + 4 + self._controls + self._statistics.numel
            self._buckets, self._places = make_buckets(self._parameters, extra)

    # ---- backward ----

    def _add_hooks(self) -> None:
        # Hooks cost microseconds in each step, so a process that is alone has none.
        if not self._listens:
            self._listens = True
            for p in self._parameters:
                p.register_post_accumulate_grad_hook(weak_hook(self._after_accumulate))  # type: ignore[no-untyped-call]
        if self.phase is Phase.ACCUMULATE and not self._clears:
            self._clears = True
            for number, p in enumerate(self._parameters):
                p.register_hook(partial(weak_hook(self._before_accumulate), number))  # type: ignore[no-untyped-call]

    def _before_accumulate(self, number: int, _: torch.Tensor) -> None:
        """Remove an old gradient before a backward adds to it."""
        if self.phase is Phase.ACCUMULATED:
            # Another backward of the same minibatch: the first gradient is already in the bucket.
            self._parameters[number].grad = None

    def _after_accumulate(self, parameter: torch.Tensor) -> None:
        """Handle the gradient that a backward has added to a parameter."""
        if self.phase not in _COLLECTING:
            return
        if not self._touched:
            if self.phase is Phase.REDUCED:
                if not self._repeatable:
                    raise UsageError(
                        "backward() was called again after the last batch of an update that "
                        "gathers several; add the losses up and call it once for each batch (a "
                        "layer that is computed again, with checkpoint(), needs "
                        "use_reentrant=False)"
                    )
                self.phase = Phase.REDUCE
            after_backward(self._finish_backward)
        number = self._numbers[id(parameter)]
        self._touched.add(number)
        if self.phase is Phase.REDUCE and self._group is not None:
            bucket, view = self._places[number]
            self._add_to_bucket(parameter, view)
            bucket.pending -= 1
            # In the same order in all members. The last bucket also has control numbers, which
            # are known only at the end of backward.
            while self._next < len(self._buckets) - 1 and not self._buckets[self._next].pending:
                self._launch(self._group)

    def _add_to_bucket(self, parameter: torch.Tensor, view: torch.Tensor) -> None:
        """Add a weighted gradient to its part of a bucket."""
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if gradient.requires_grad:
            gradient = gradient.detach()  # needed after backward(create_graph=True)
        if self._accumulated:
            view.add_(gradient, alpha=self._share)
        elif self._share:
            torch.mul(gradient, self._share, out=view)
        else:
            view.zero_()  # not a multiplication by zero: inf * 0 is NaN

    def _finish_backward(self) -> None:
        if self.phase in (Phase.ACCUMULATE, Phase.ACCUMULATED):
            self._accumulate()
            self._share_before += self._share if self.phase is Phase.ACCUMULATE else 0.0
            self.phase = Phase.ACCUMULATED
        elif self.phase is Phase.REDUCE:
            if self._group is None:
                self._sum_alone()
            else:
                self._reduce(self._group)
            self._clear_buckets()
            if self.phase is Phase.REDUCE:
                self.phase = Phase.REDUCED
        self._touched.clear()

    def _accumulate(self) -> None:
        """Add the gradients of one minibatch to the buckets."""
        for number, parameter in enumerate(self._parameters):
            _, view = self._places[number]
            own = parameter.grad
            if number in self._touched:
                self._add_to_bucket(parameter, view)
            elif not self._accumulated:
                view.zero_()
            if own is not None and not own.is_sparse and own.data_ptr() == view.data_ptr():
                # A view from the update before: changes by the script must not reach the bucket.
                parameter.grad = own.clone() if number in self._touched else None
        self._accumulated |= self._touched

    def _sum_alone(self) -> None:
        """Add this minibatch to the accumulated ones, in a process that is alone."""
        used = self._touched | self._accumulated
        for number, parameter in enumerate(self._parameters):
            _, view = self._places[number]
            if number in self._touched:
                self._add_to_bucket(parameter, view)
            parameter.grad = view if number in used else None
        self.covered, self._repeatable = self._share_before + self._share, False

    def _reduce(self, group: ProcessGroup) -> None:
        """Start the remaining collectives, with the control numbers, and wait for all of them."""
        has: list[bool] = []
        for number, parameter in enumerate(self._parameters):
            own = number in self._touched
            if not own:
                bucket, view = self._places[number]
                if self._share and parameter.grad is not None:
                    # From an earlier backward of this update: the weighted sum does not change.
                    self._add_to_bucket(parameter, view)
                    own = True
                elif not self._accumulated:
                    view.zero_()
                bucket.pending -= 1
            has.append(number in self._accumulated or (own and self._share > 0))
        extra = self._buckets[-1].extra
        length = extra.numel() - self._statistics.numel
        told, statistics = extra[:length], extra[length:]
        told.copy_(torch.tensor([*self._told(has), 0.0, 0.0]))
        if self._checks:
            # Written by the device, which this thread need not wait for.
            self._finite += (are_finite([b.gradients]) for b in self._buckets[self._next :])
            finite = torch.stack([each.to(told.device) for each in self._finite]).all()
            told[-2:] = ~finite * torch.tensor([1.0, group.rank], device=told.device)
        statistics.zero_()
        if self._leads:
            self._statistics.write(statistics)
        while self._next < len(self._buckets) and self.phase is not Phase.BROKEN:
            self._launch(group)
        try:
            group.wait(self._waits)
        except RingBrokenError as error:
            self.fail(str(error))
        if self.phase is Phase.BROKEN:
            return
        *sums, count, ranks = told.tolist()
        self._infinite = [count, ranks]
        if (members := self._heard(sums, len(has))) is None:
            return
        for p, (_, view), n in zip(self._parameters, self._places, members, strict=True):
            p.grad = view if n else None
        self._statistics.read(statistics)

    def _launch(self, group: ProcessGroup) -> None:
        if self._checks and len(self._finite) == self._next:
            self._finite.append(are_finite([self._buckets[self._next].gradients]))
        try:
            self._waits.append(group.allreduce(self._buckets[self._next].flat))
        except RingBrokenError as error:
            self.fail(str(error))
        self._next += 1


class ReplicatedTorchModel:
    """A torch model; see :class:`~torch_edl.engine.ring.replicated.Replicated`.

    Args:
        alone: True if no other process ever trains the model.
    """

    def __init__(self, replica: Replica, *, alone: bool = False) -> None:
        self.replica = replica
        self._alone = alone
        self._reducer: Reducer

    def reducer(self, controls: int, send: Send, receive: Receive) -> Reducer:
        self._reducer = Reducer(self.replica.model, controls, send, receive)
        return self._reducer

    def attach(
        self, before_step: Callable[[Any], None], after_step: Callable[[], None]
    ) -> Callable[[], None]:
        def is_free() -> bool:
            return self._alone and self._reducer.phase in (Phase.IDLE, Phase.LOCAL)

        hooks = [
            hook
            for optimizer in self.replica.optimizers
            for hook in (
                on_step(optimizer, before_step, is_free),
                optimizer.register_step_post_hook(lambda *_: after_step()),
            )
        ]

        def detach() -> None:
            for hook in hooks:
                hook.remove()

        return detach

    def connect(
        self, store: str, ring: int, rank: int, size: int, *, host: str, meet_s: float
    ) -> ProcessGroup:
        device = self.replica.device
        return ProcessGroup(store, ring, rank, size, host=host, device=device, meet_s=meet_s)
