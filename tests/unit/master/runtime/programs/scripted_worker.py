"""A worker without torch that does what ``$SCRIPT/plan.json`` says for its id.

Plan of a worker (``"0"``, or ``"*"`` for all others): ``fail_task`` ID: reports that task as
failed; ``wait_at`` N: with N tasks done continues only when ``$SCRIPT/go`` exists.

Each record of a task that the master took as done is a line of ``$SCRIPT/records-<id>.txt``.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import pserver_pb2 as ps
from torch_edl.wire import services
from torch_edl.wire.channel import Stub

me = int(sys.argv[sys.argv.index("--id") + 1])
folder = Path(os.environ["SCRIPT"])
plans = json.loads((folder / "plan.json").read_text())
plan = plans.get(str(me), plans.get("*", {}))
print(f"worker {me} with {plan}")
master = Stub(
    services.MASTER,
    os.environ["TORCH_EDL_MASTER"],
    os.environ["TORCH_EDL_TOKEN"],
)
done = steps = 0
drain = threading.Event()


def call(method, **fields):
    return send(method, worker_id=me, **fields)


def send(method, **fields):
    request = getattr(pb, f"{method}Request")(**fields)
    return master.insist(request, timeout_s=10, away_s=20)


def beat():
    while True:
        answer = call("Heartbeat", steps=steps, records=2 * steps, loss=0.5, phase="training")
        if answer.drain:
            drain.set()
        time.sleep(0.1)


def complete(lease, **fields):
    return call("CompleteTask", lease_id=lease.lease_id, task=task(lease), **fields).known


def task(lease):
    return pb.LeasedTask(kind=lease.kind, task_id=lease.task_id, incarnation=incarnation)


def train(lease, incarnation):
    global done, steps
    while done >= plan.get("wait_at", 1 << 60) and not (folder / "go").exists():
        if drain.is_set():
            call("ReleaseTask", lease_id=lease.lease_id)
            return
        time.sleep(0.02)
    if lease.task_id == plan.get("fail_task"):
        call(
            "FailTask",
            lease_id=lease.lease_id,
            error=f"ValueError: task {lease.task_id}",
            traceback="Traceback: in feed",
        )
        return
    count = lease.end - lease.start
    steps += -(-count // 2)
    counts = pb.TaskCounts(records=count - lease.offset, steps=-(-count // 2))
    if complete(lease, counts=counts):
        done += 1
        with open(folder / f"records-{me}.txt", "a") as file:
            for i in range(lease.start + lease.offset, lease.end):
                file.write(f"{incarnation} {lease.epoch} {Path(lease.shard).name} {i}\n")


def snapshot(lease):
    Path(lease.directory).mkdir()
    Path(lease.directory, "shard-0-of-1.bin").write_bytes(b"model")
    written = ps.Snapshot(version=steps, files={"shard-0-of-1.bin": 5})
    complete(lease, snapshot=written)


call("Register", pid=os.getpid(), host="here")
threading.Thread(target=beat, daemon=True).start()
send("ReportModel")
while True:
    answer = call("WaitUntilReady")
    if answer.HasField("start"):
        answer = answer.start
        break
    if answer.leave or drain.is_set():
        sys.exit(0)
print(f"strategy {answer.strategy}, from {answer.cluster.restored_from!r}")
incarnation = answer.cluster.incarnation
while True:
    answer = call("Lease", want=1, incarnation=incarnation)
    if answer.next in (pb.LeaseResponse.FINISHED, pb.LeaseResponse.DRAIN):
        break
    if answer.next == pb.LeaseResponse.CLUSTER_CHANGED:
        incarnation = answer.cluster.incarnation
    for lease in answer.leases:
        if lease.kind == pb.TASK_TRAIN:
            train(lease, incarnation)
        elif lease.kind == pb.TASK_SNAPSHOT:
            snapshot(lease)
