"""``torch-edl join``, and ``torch-edl run --rdzv-endpoint`` of a model file where the master is on
another machine: this process becomes a node of the job."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import secrets
import sys
import time
from pathlib import Path, PurePosixPath
from typing import NoReturn

import grpc

from torch_edl.checkpoint.durable import replacing
from torch_edl.cli.terminal import stderr
from torch_edl.config import Experiment
from torch_edl.config.environment import (
    ENV_HOST,
    ENV_MASTER,
    ENV_MODEL_FILE,
    ENV_TOKEN,
    edl_home,
)
from torch_edl.errors import JobFailedError, UsageError
from torch_edl.launch.jobs import master_host
from torch_edl.processes.local import environment
from torch_edl.wire import master_pb2 as pb
from torch_edl.wire import services
from torch_edl.wire.channel import REFUSED, Stub, unanswered
from torch_edl.wire.endpoint import own_address, split

_CALL_S = 5.0
_AGAIN_S = 0.5
# Seconds to wait for the master: the commands of all machines may be started in any order.
_WAIT_S = 600.0


def main(args: argparse.Namespace) -> int:
    """Lend this machine to the job whose master listens at an endpoint.

    Raises:
        UsageError: the endpoint, the token or the model file cannot work.
        JobFailedError: no master answers.
    """
    split(args.endpoint)
    if args.model_file and not Path(args.model_file).is_file():
        raise UsageError(f"--model-file {args.model_file}: no such file on this machine")
    if args.nproc_per_node is not None and args.nproc_per_node < 1:
        raise UsageError(f"--nproc-per-node {args.nproc_per_node}: must be 1 or more")
    join(args.endpoint, slots=args.nproc_per_node or 0, model_file=args.model_file)


def join(
    endpoint: str, *, slots: int = 0, model_file: str = "", experiment: Experiment | None = None
) -> NoReturn:
    """Become a node of a job: this process is replaced by that of the node.

    Args:
        endpoint: ``host:port`` of the master.
        slots: maximum number of workers on this machine; 0: as the job decides.
        model_file: path of the model file on this machine; empty: the file of the master is used.
        experiment: the job that the user named; None: any job.

    Raises:
        UsageError: the token or the model file cannot work, or the job is another one.
        JobFailedError: no master answers.
    """
    token = master_host.named_token(endpoint)
    request = pb.NodeReportRequest()
    if experiment is not None:
        request.experiment.CopyFrom(pb.Experiment(**dataclasses.asdict(experiment)))
    job = _ask(endpoint, token, request)
    if job.folder and not (Path(job.folder) / job.mark).exists():
        raise UsageError(
            f"{job.folder}: not the folder that job {job.name} uses on its other machines; the "
            "folders of --checkpoint-dir and --output must be on a file system that all machines "
            "share"
        )
    file = _model_file(job, model_file)
    host = os.uname().nodename
    name = f"{host}-{secrets.token_hex(2)}"
    words = ["--job", job.name, "--name", name, "--incarnation", job.incarnation]
    words += ["--host", host, "--slots", str(slots)]
    words += ["--preload", *job.preload] if job.preload else []
    env = {
        ENV_HOST: own_address(endpoint),
        **environment(),
        **job.environment,
        ENV_MASTER: endpoint,
        ENV_TOKEN: token,
        ENV_MODEL_FILE: str(file),
    }
    stderr().print(
        f"joining job {job.name} of {endpoint} as {name}; Ctrl-C takes this machine out of it",
        soft_wrap=True,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", "torch_edl.node", *words], env)


def _ask(endpoint: str, token: str, request: pb.NodeReportRequest) -> pb.JobOfNode:
    """Return the job of a master, after waiting until the master listens."""
    deadline = time.monotonic() + _WAIT_S
    stub = Stub(services.NODES, endpoint, token)
    try:
        with stderr().status(f"waiting for the master of a job at {endpoint}"):
            while True:
                try:
                    answer: pb.NodeReportResponse = stub.call(request, timeout_s=_CALL_S)
                    break
                except grpc.RpcError as error:
                    if error.code() in REFUSED:
                        raise UsageError(f"{endpoint}: {error.details()}") from None
                    if time.monotonic() >= deadline:
                        text = f"{endpoint}: no master answers: {unanswered(error)}"
                        raise JobFailedError(text) from None
                time.sleep(_AGAIN_S)
    finally:
        stub.close()
    if answer.leave or not answer.HasField("job"):
        raise UsageError(f"{endpoint}: {answer.why or 'the job there runs on one machine only'}")
    return answer.job


def _model_file(job: pb.JobOfNode, named: str) -> Path:
    """Return the model file on this machine: the one that the user named, the one at the path of
    the master's machine, or a copy of that.

    Raises:
        UsageError: there is none, or it differs from that of the master.
    """
    for path in filter(None, (named, job.model_file)):
        file = Path(path).absolute()
        if file.is_file() and _digest(file.read_bytes()) == job.digest:
            return file
    if named:
        raise UsageError(
            f"--model-file {named}: its text differs from that of {job.model_file}, the model file "
            f"of job {job.name}"
        )
    if not job.code:
        raise UsageError(
            f"{job.model_file}: the model file of job {job.name} is not on this machine; copy it "
            "here and name it with --model-file FILE"
        )
    folder = edl_home() / "code" / _digest(repr(sorted(job.code.items())).encode())[:16]
    for name, content in job.code.items():
        below = PurePosixPath(name)
        if below.is_absolute() or ".." in below.parts:
            raise UsageError(f"{name}: not a path below the folder of the model file")
        target = folder / below
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(target) as copy:
            copy.write(content)
    return folder / PurePosixPath(job.model_file).name


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
