"""A script with several trainings, one after the other, under ``torch-edl run``."""

from __future__ import annotations

import json
import re

import pytest

from tests.place import Place
from tests.waiting import HANG_S, wait_for

TRAININGS = """
import os, signal, time
import torch, torch_edl
from torch.utils.data import TensorDataset
for number in (1, 2, 3):
    job = torch_edl.init()
    model = torch.nn.Embedding(320 * number, 1)  # each weight counts its record
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=32.0)
    model, optimizer = job.prepare(model, optimizer)
    data = TensorDataset(torch.arange(320 * number))
    options = {"batch_size": 32, "global_batch_size": 32, "shuffle": True, "epochs": number}
    for (x,) in job.loader(data, **options):
        optimizer.zero_grad()
        (-model(x).mean()).backward()
        optimizer.step()
        if number == 2 and job.step == 10:
            try:
                os.close(os.open("killed", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        if number == 2 and job.step == 12:
            # Ring 3 is that of the survivor, until the replacement asks to join.
            while job.world_size == 1 and job._session.heartbeat.stale_ring < 3:
                time.sleep(0.01)
    seen = job.collect(lambda rank, world: b"", len)
    counts = model.weight.detach().unique().tolist()
    print(f"training {number}: counts {counts}, {job.step} steps", flush=True)
    job.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_each_training_counts_each_record_also_if_a_worker_is_killed(
    kept: bool, place: Place
) -> None:
    name = "kept" if kept else "handed-on"
    (place / "killed").unlink(missing_ok=True)
    (place / "trainings.py").write_text(TRAININGS)
    options = "--checkpoint-dir ck" if kept else ""
    done = place(f"run --workers 2 --job-name {name} {options} trainings.py")
    found = re.findall(r"training (\d): counts \[(.*)\], (\d+) steps", done.stdout)
    # One process completes training 1 before it is killed; its replacement has the final model of
    # training 1, also without --checkpoint-dir, and takes part from training 2 on.
    ends = [("1", "1.0", "10"), ("2", "2.0", "40"), ("3", "3.0", "90")]
    assert sorted(found) == sorted([ends[0], *ends, *ends]), done.text
    assert json.loads(place(f"audit {name} --json").stdout)["verdict"] == "holds"
    status = json.loads(place(f"status {name} --json").stdout)
    assert (status["records"]["done"], status["steps"]) == (320 + 1280 + 2880, 140)
    assert not kept or "training-2" in status["checkpoint"] or "training-3" in status["checkpoint"]
    assert kept or not status["checkpoint"], "the folder of the models of trainings is temporary"


ON_SERVERS = """
import os, signal, time
import torch, torch_edl
from torch.utils.data import TensorDataset
earlier, scores = [], []
for number in (1, 2):
    job = torch_edl.init()
    rows = torch_edl.nn.Embedding(None, 1, initializer="zeros")  # each row counts its record
    dense = torch.nn.Embedding(320 * number, 1)
    torch.nn.init.zeros_(dense.weight)
    model = torch.nn.ModuleList([rows, dense])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = job.prepare(model, optimizer)
    data = TensorDataset(torch.arange(320 * number))
    for (x,) in job.loader(data, batch_size=4, shuffle=True, epochs=number):
        optimizer.zero_grad()
        (-model[0](x).sum() - model[1](x).sum()).backward()
        optimizer.step()
        if number == 2 and job.step == 10:
            try:
                os.close(os.open("killed", os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        while number == 2 and job.step >= 10 and not os.path.exists("replaced"):
            time.sleep(0.01)
    scores.append(job.collect(lambda rank, world: b"", lambda parts: 0.5 * number))
    values = job.state_dict()
    counts = [values["0.vectors"].unique().tolist(), values["1.weight"].unique().tolist()]
    earlier.append((len(values["0.ids"]), counts))
    if number == 1 and os.path.exists("killed"):
        open("replaced", "w").close()
    print("trainings", earlier, scores, flush=True)
    job.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_each_training_on_servers_counts_each_record_also_if_a_worker_is_killed(
    kept: bool, place: Place
) -> None:
    name = "served-kept" if kept else "served"
    for mark in ("killed", "replaced"):
        (place / mark).unlink(missing_ok=True)
    (place / "served.py").write_text(ON_SERVERS)
    options = "--workers 2 --ps 2 --strategy ps" + " --checkpoint-dir served-ck" * kept
    # Each wait has a limit of its own: the replacement may start a minute after the job.
    run = place.edl("run", *options.split(), "--job-name", name, "served.py")
    wait_for((place / "replaced").exists, "a replacement in training 2")
    stdout, stderr = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, stderr
    one = "(320, [[1.0], [1.0]])"
    ends = [f"trainings [{one}] [0.5]", f"trainings [{one}, (640, [[2.0], [2.0]])] [0.5, 1.0]"]
    # The replacement of the process that was killed in training 2 has the model of training 1,
    # and the value that the others computed together.
    found = [line for line in stdout.splitlines() if line.startswith("trainings")]
    assert sorted(found) == sorted([ends[0], *ends, *ends]), stdout + stderr
    report = json.loads(place(f"audit {name} --json").stdout)
    assert report["verdict"] == "holds", report
    each = [(epoch["training"], epoch["records_done"]) for epoch in report["epochs"]]
    assert each == [(1, 320), (2, 640), (2, 640)]
    status = json.loads(place(f"status {name} --json").stdout)
    assert (status["records"]["done"], status["records"]["total"]) == (1600, 1600)
    if kept:
        again = place(f"run {options} --resume --job-name again served.py")
        found = [line for line in again.stdout.splitlines() if line.startswith("trainings")]
        assert sorted(found) == sorted([*ends, *ends]), again.text
