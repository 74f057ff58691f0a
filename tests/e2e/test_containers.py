"""Two nodes that share the network of their machine, as containers may: equal host names, and
pid namespaces in which their pids are equal."""

from __future__ import annotations

import subprocess

import pytest

from tests.place import EDL, Place
from tests.waiting import COMMAND_S, wait_for
from torch_edl.wire.endpoint import free_port, is_listening

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
COUNTS = """
import torch, torch_edl
from torch.utils.data import TensorDataset
job = torch_edl.init()
model = torch.nn.Embedding(640, 1)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=32.0)
model, optimizer = job.prepare(model, optimizer)
numbers = TensorDataset(torch.arange(640))
for (x,) in job.loader(numbers, batch_size=32, global_batch_size=32, shuffle=True, epochs=2):
    optimizer.zero_grad()
    (-model(x).mean()).backward()
    optimizer.step()
print("counts", model.weight.detach().unique().tolist())
"""


@pytest.mark.slow
def test_two_nodes_of_equal_host_names_and_pids_do_the_job(place: Place) -> None:
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("pid namespaces are not allowed here")
    (place / "counts.py").write_text(COUNTS)
    endpoint = f"127.0.0.1:{free_port()}"
    words = ["run", "--nnodes", "2", "--rdzv-endpoint", endpoint, "counts.py"]
    nodes = []
    for name in ("one", "two"):  # each has a home of its own, as a container has
        home = {
            "TORCH_EDL_HOME": str(place / f"home-{name}"),
            "TORCH_EDL_TOKEN": "0123456789abcdef" * 3,
        }
        nodes.append(
            place.start(*UNSHARE, *EDL, *words, env=place.env | home, stderr=subprocess.STDOUT)
        )
        wait_for(lambda: is_listening(endpoint))
    for node in nodes:
        text, _ = node.communicate(timeout=COMMAND_S)
        assert node.returncode == 0, text
        assert "counts [2.0]" in text
