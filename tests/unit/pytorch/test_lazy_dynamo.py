"""Optimizers run without torch's compiler until somebody compiles. The tests have processes of
their own, since a process imports the compiler once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

_BEGIN = """
import sys
import torch
from torch_edl.pytorch.lazy_dynamo import defer_dynamo

def loaded():
    return "torch._dynamo" in sys.modules

def train(kind, forward, steps=3):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    run = forward(model)
    optimizer = kind(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = run(torch.ones(3, 4)).square().mean()
        loss.backward()
        assert torch.is_grad_enabled()
        optimizer.step(lambda: loss)
        scheduler.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return model.weight.detach().clone()

KINDS = [getattr(torch.optim, name) for name in (
    "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD", "LBFGS",
)]
"""


def _run(body: str) -> None:
    code = _BEGIN + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_optimizers_import_the_compiler_when_somebody_compiles() -> None:
    # A torch that fails here has other methods than those that defer_dynamo() knows: jobs work,
    # and each worker starts 1.9 s of CPU later.
    _run(
        """
        defer_dynamo()
        defer_dynamo()
        plain = {}
        for kind in KINDS:
            plain[kind] = train(kind, lambda model: model)
            assert not loaded(), kind

        compiled = train(torch.optim.SGD, lambda model: torch.compile(model, backend="eager"))
        assert loaded()
        assert torch.equal(plain[torch.optim.SGD], compiled)
        function = torch.optim.Optimizer.zero_grad.__wrapped__
        assert getattr(function, "__dynamo_disable").__module__ == "torch._dynamo.eval_frame"

        for kind in KINDS:
            assert torch.equal(plain[kind], train(kind, lambda model: model)), kind
        step = torch.optim.Adam.step
        defer_dynamo()
        assert torch.optim.Adam.step is step
        """
    )


def test_a_method_that_torch_has_changed_is_left_alone() -> None:
    _run(
        """
        def step(self, closure=None):
            raise AssertionError("not called")
        torch.optim.Adam.step = step
        other = torch.optim.Optimizer.zero_grad = lambda self: None
        defer_dynamo()
        assert torch.optim.Adam.step is step
        assert torch.optim.Optimizer.zero_grad is other
        """
    )
