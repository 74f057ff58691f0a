"""The worker process of a model file, which trains, evaluates or predicts.

The master starts ``python -m torch_edl.training.worker --job NAME --id I`` with its address and
token in the environment. The worker registers, sends heartbeats, loads the model file, reports the
model to the master, and begins once the master has chosen the strategy and, with servers, started
them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from torch_edl import _core
from torch_edl.config import extensions
from torch_edl.config.environment import ENV_TOKEN
from torch_edl.errors import (
    CheckpointError,
    DismissedError,
    JobFailedError,
    MasterLostError,
    NanLossError,
    UsageError,
    UserCodeError,
)
from torch_edl.master_client.session import MasterSession
from torch_edl.processes import machine_speed, preemption
from torch_edl.processes.process_group import end_own_group
from torch_edl.processes.signals import LEFT, GracefulExit
from torch_edl.processes.this_process import configure_torch, leave, leave_now, setup_logging
from torch_edl.training.contract.backends import TORCH, backend_of, importing, named
from torch_edl.wire.security.credentials import identity

if TYPE_CHECKING:
    from torch_edl.config import JobConfig
    from torch_edl.training.contract.functions import UserFunctions

log = logging.getLogger(__name__)

# Modules that every worker imports after its registration.
_OF_EACH_WORKER = (
    "torch_edl.training.run_file",
    "torch_edl.training.one_off",
    "numpy.random",
)
# Fraction of the heartbeat timeout after which a worker without heartbeats dumps its stacks.
_DUMP_AT = 0.7


def main(argv: Sequence[str] | None = None) -> int:
    """Run one worker until the job is over, the worker is asked to leave, or an error occurs.

    Returns:
        The exit code: 143 after SIGTERM, 1 after an error, else 0, also after a notice.
    """
    parser = argparse.ArgumentParser(prog="torch_edl.training.worker")
    parser.add_argument("--job", help="name of the job, shown by ps")
    parser.add_argument("--id", type=int, required=True)
    args = parser.parse_args(argv)
    worker_id = args.id
    setup_logging("worker", worker_id)
    _core.tune_malloc()
    configure_torch()
    # Imports make no garbage, and the collector would visit their objects many times, which takes a
    # tenth of the time to import torch.
    gc.disable()
    departure = GracefulExit()
    departure.listen()
    try:
        master = MasterSession(worker_id, departure)
    except DismissedError:
        return 0
    except (JobFailedError, MasterLostError) as error:
        log.error("%s", error)
        return 1
    master.heartbeat.on_silence = _end_alone
    master.heartbeat.dump_after_s = _DUMP_AT * master.config.cluster.heartbeat_timeout_s
    try:
        code = _work(master)
    except DismissedError:
        code = 0
    except MasterLostError as error:
        log.error("the master is gone: %s", error)
        code = 1
    finally:
        master.heartbeat.stop()
    return departure.exit_code if departure.asked.is_set() else code


def preload(format: str = "") -> None:
    """Import what a worker of torch needs. Called in the fork server before it forks workers.

    Args:
        format: format of the data files; empty: unknown.
    """
    from torch_edl.data.sources.opening import file_type

    configure_torch()
    for module in _OF_EACH_WORKER:
        importlib.import_module(module)
    named(TORCH).warm_up()
    # A child could not use the thread of Arrow's second allocator, which is not the default one.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    extensions.by_group()
    with contextlib.suppress(UsageError):  # the worker reports the error
        identity(os.environ.get(ENV_TOKEN, ""))
        if format:
            file_type(format)
    if "pyarrow" in sys.modules and importlib.util.find_spec("pandas") is not None:
        # The first conversion of Arrow data to numpy imports pandas, if that is installed.
        importlib.import_module("pandas")


def run() -> NoReturn:
    """Run a worker with the arguments of this process, then end the process."""
    _end(main())


def _load(config: JobConfig) -> UserFunctions:
    """Import the framework of the model file, and load the file.

    Raises:
        UsageError: the framework is not installed, or the file breaks the contract.
    """
    backend = backend_of(config.model_file)
    with importing(backend):
        backend.warm_up()
    functions: UserFunctions = backend.load_contract(config.model_file, config.model_args)
    return functions


def _work(master: MasterSession) -> int:
    """Load the model file, report the model and execute tasks; return the exit code."""
    # Imported while heartbeats are sent: importing a framework takes seconds on a busy machine.
    master.progress.phase = "importing"
    from torch_edl.data.feeder import FeedError
    from torch_edl.training.contract.source_files import user_line, user_traceback
    from torch_edl.training.one_off import fit, is_untried
    from torch_edl.training.run_file import run

    config = master.config
    try:
        functions = _load(config)
        file = backend_of(config.model_file).make_model(functions, config)
        model = file.report()
        model.custom_source = functions.data_source is not None
        model.shards.extend(file.shards())
        master.progress.phase = "waiting"
        columns = functions.preprocessing
        if columns is None:
            start = master.start(model)
        else:
            model.preprocessing = columns.spec
            start = master.start(
                model, functools.partial(fit, columns, file.feeder.records, master)
            )
            columns.load_bytes(start.preprocessing)
            if config.checkpoint.load:
                columns.tell_unknown(log.warning)
        file.apply(start)
        master.begin()
        preemption.watch(master.departure.leave)
        if config.cluster.check_machine:
            master.progress.phase = "checking"
            master.progress.machine.update(machine_speed.measure()._asdict())
            master.heartbeat.beat()
        gc.freeze()
        gc.enable()
        run(file, master, start)
        return 0
    except (UsageError, CheckpointError, UserCodeError, NanLossError, FeedError) as error:
        if master.departure.asked.is_set():
            log.info("while leaving: %s", error)
            return LEFT
        # Another worker would fail in the same way, so the job fails.
        master.report_failure(
            str(error) + user_line(error, config.model_file),
            user_traceback(error, config.model_file),
            running=not isinstance(error, UsageError),
            untried=is_untried(error, master.progress.steps),
        )
        return 1


def _end_alone() -> None:
    """End this process and its children, since the master that would stop them is lost."""
    log.error("no answer from a master for too long: this worker ends")
    logging.shutdown()
    end_own_group()


def _end(code: int) -> NoReturn:
    """Exit with a code, even while the user's ``feed`` runs in the thread that prepares tasks."""
    tasks = sys.modules.get("torch_edl.data.tasks")
    if tasks is not None and tasks.TaskPrefetcher.is_preparing():
        leave_now(code)
    leave(code)


if __name__ == "__main__":
    run()
