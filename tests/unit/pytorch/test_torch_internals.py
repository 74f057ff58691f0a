"""What relies on the internals of torch and is tested nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]

BEGIN = """
import sys, torch
from torch_edl.pytorch.torch_internals import defer_compiler
defer_compiler()

def is_imported():
    return "torch._dynamo.eval_frame" in sys.modules

def steps(model, kind=torch.optim.SGD):
    optimizer = kind(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return optimizer

model = torch.nn.Linear(3, 1)
"""
EAGER = """
import copy, inspect, pickle
for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad,
             torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adadelta):
    steps(model, kind)
for loaded in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 3)), 2):
    pass
pickle.dumps(copy.deepcopy(steps(model)).state_dict())
assert inspect.getmodule(steps) is sys.modules["__main__"]
assert not is_imported()
"""
COMPILED = """
optimizer = steps(model)
plain = model(torch.ones(2, 3))
compiled = torch.compile(model, backend="eager")
assert torch.equal(compiled(torch.ones(2, 3)), plain)
assert is_imported()
assert sys.modules["torch._dynamo"] is torch._dynamo is not None
assert hasattr(torch._dynamo, "__path__") and torch._dynamo.__name__ == "torch._dynamo"
# The compiler leaves out methods that were called before, as it does those of other optimizers.
before = vars(torch.optim.Optimizer.zero_grad.__wrapped__)
assert "__dynamo_disable" not in before
steps(model)
assert before["__dynamo_disable"] is not torch.optim.Optimizer.zero_grad.__wrapped__
steps(compiled)
"""


def run(code: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_optimizers_do_not_import_the_compiler() -> None:
    run(EAGER)


def test_the_compiler_works_once_it_is_used() -> None:
    run(COMPILED)


USES = [
    "import torch._dynamo.config as c; c.cache_size_limit",
    "from torch._dynamo import allow_in_graph",
    "torch._dynamo.disable(lambda: 1)()",
]


def test_any_use_imports_the_compiler() -> None:
    """Each in a forked process."""
    code = f"""
    import os
    steps(model)
    for use in {USES}:
        if (pid := os.fork()) == 0:
            exec(use)
            assert is_imported(), use
            steps(model)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, use
    """
    run(code)
