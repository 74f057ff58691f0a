"""Real processes in real rings, without a master: the test's own thread answers their questions.

Who is in which ring is decided by the master's own state machine, so that the tests of a member
meet the rings that they will meet in a job.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

import torch

from master.state.ring import Ring
from tests.waiting import HANG_S
from tests.warm import FORKS
from torch_edl.api.job import Job
from torch_edl.config import CheckpointConfig, JobConfig, TrainConfig
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.errors import DismissedError
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.processes.signals import GracefulExit
from torch_edl.pytorch.ring import process_group as group_module
from torch_edl.pytorch.ring.process_group import StoreServer
from torch_edl.wire import master_pb2 as pb

MEET_S = HANG_S


def _flag() -> Any:
    return FORKS.Value("q", 0, lock=False)


@dataclass
class Flags:
    """What a heartbeat would tell a member."""

    stale: Any
    broken: Any
    leaving: Any
    silent: Any


class Office:
    """Forms rings of the members that it started; ``first`` of them make the first one."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.ring = Ring()
        self.seats: list[pb.Ring] = []
        self.accept = True
        """Whether checkpoints may be committed."""
        self.restored_from = ""
        """The checkpoint that a new model begins with."""
        self.members: list[Running] = []
        self._lock = threading.Lock()
        self._wake, self._waker = multiprocessing.Pipe(duplex=False)
        self._over = False
        self._dropped: list[int] = []
        self._thread = threading.Thread(target=self._serve, name="office")
        self._thread.start()

    def start(self, program: Callable[..., None], *args: Any) -> Running:
        """A process that runs ``program(member, *args)``."""
        asks, answers = multiprocessing.Pipe()
        near, far = multiprocessing.Pipe()
        flags = Flags(_flag(), _flag(), _flag(), _flag())
        worker = len(self.members)
        process = FORKS.Process(
            target=_run, args=(program, worker, asks, far, flags, self.ring.number, args)
        )
        process.start()
        asks.close()
        far.close()
        running = Running(worker, process, answers, near, flags)
        with self._lock:
            self.members.append(running)
        self._waker.send_bytes(b"x")
        return running

    def drop(self, member: Running) -> None:
        """Gives a member up, as the master does with one that is silent."""
        with self._lock:
            self._dropped.append(member.worker)
        self._waker.send_bytes(b"x")

    def close(self) -> None:
        """Ends all processes."""
        for member in self.members:
            member.kill()
        for member in self.members:
            member.process.join(HANG_S)
            member.pipe.close()
        self._over = True
        self._waker.send_bytes(b"x")
        self._thread.join()
        for pipe in (self._wake, self._waker, *(m.answers for m in self.members)):
            pipe.close()

    def _serve(self) -> None:
        gone: set[int] = set()
        waiting: set[int] = set()
        while not self._over:
            with self._lock:
                open_ = {m.answers: m for m in self.members if m.worker not in gone}
            for pipe in wait([self._wake, *open_], timeout=0.02):
                if pipe is self._wake:
                    self._wake.recv_bytes()
                    continue
                member = open_[pipe]  # type: ignore[index]
                try:
                    what, *rest = member.answers.recv()
                except (EOFError, OSError):
                    gone.add(member.worker)
                    waiting.discard(member.worker)
                    self.ring.drop(member.worker)
                    continue
                now = time.monotonic()
                if what == "ask":
                    ended, *word = rest
                    hear = self.ring.stand_by if ended else self.ring.ask
                    over = ended and self.ring.finished
                    if over or not self.ring.wanted(member.worker):
                        member.answers.send(None)
                    elif (formed := hear(member.worker, *word, now)) is not None:
                        member.answers.send(formed)
                    else:
                        waiting.add(member.worker)
                elif what == "leave":
                    self.ring.leave(member.worker, now, finished=rest[0])
                    self.ring.exited(member.worker, well=True)
                    member.answers.send(True)
                elif what == "commit":
                    member.answers.send(self.accept)
            while self._dropped:
                self.ring.drop(self._dropped.pop())
            now = time.monotonic()
            if self.ring.due(now, min_workers=self.first, max_workers=self.first):
                formed = self.ring.form(restored_from=self.restored_from)
                self.seats.append(formed)
                for worker in waiting & set(formed.workers):
                    with contextlib.suppress(OSError):
                        self.members[worker].answers.send(formed)
                waiting -= set(formed.workers)
            for worker in [worker for worker in waiting if not self.ring.wanted(worker)]:
                with contextlib.suppress(OSError):
                    self.members[worker].answers.send(None)
                waiting.remove(worker)
            for member in self.members:
                member.flags.stale.value = self.ring.stale()
                member.flags.broken.value = self.ring.broken(now)


@dataclass
class Running:
    """A process, as the test sees it."""

    worker: int
    process: Any
    answers: Connection
    pipe: Connection
    flags: Flags

    def hear(self, timeout_s: float = HANG_S) -> Any:
        """The next thing that it told; an AssertionError if that is how it failed."""
        assert self.pipe.poll(timeout_s), f"member {self.worker} said nothing"
        try:
            kind, value = self.pipe.recv()
        except EOFError:
            raise AssertionError(f"member {self.worker} is gone") from None
        assert kind == "told", value
        return value

    def tell(self, value: Any) -> None:
        """Something that its program waits for."""
        self.pipe.send(value)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """A signal, if it still runs."""
        if self.process.is_alive():
            os.kill(self.process.pid, number)


class Member(RingRendezvous):
    """A process, as its program sees it."""

    def __init__(
        self, worker: int, asks: Connection, pipe: Connection, flags: Flags, ring: int
    ) -> None:
        self.worker = self.worker_id = worker
        self.host = "127.0.0.1"
        self.meet_s = MEET_S
        self.store = StoreServer(self.host)
        self.seats: list[pb.Ring] = []
        self.on_broken_ring: Callable[[int], None] = lambda ring: None
        self.before_ask: Callable[[], None] = lambda: None
        self._asks = asks
        self._pipe = pipe
        self._flags = flags
        self._ring_then = ring
        self._joined = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        told = 0
        while True:
            if told < self._joined <= self._flags.broken.value:
                told = self._joined
                self.on_broken_ring(told)
            time.sleep(0.01)

    # ---- for the program ----

    def tell(self, value: Any) -> None:
        """Something that the test waits for."""
        self._pipe.send(("told", value))

    def hear(self) -> Any:
        """What the test tells."""
        assert self._pipe.poll(HANG_S), "the test says nothing"
        return self._pipe.recv()

    def job(self, directory: str = "", **options: Any) -> Job:
        """A job whose rings the office forms."""
        checkpoint = CheckpointConfig(
            dir=directory, every=options.pop("every", 0), resume=bool(directory)
        )
        given = {"seed": 0, "check_every": 0, "on_resize": None, **options}
        # The members share the folder of checkpoints: they are processes of one run.
        os.environ["TORCHELASTIC_RUN_ID"] = "rings"
        job = Job(None, checkpoint, **given)
        job._rendezvous = job._saver._rendezvous = self
        job._session = SimpleNamespace(  # type: ignore[assignment]
            config=JobConfig(
                name="rings",
                kind="script",
                model_file="script.py",
                train=TrainConfig(strategy="allreduce"),
            ),
            ring=self._ring_then,
            heartbeat=self,
            progress=WorkerStatus(),
            close=lambda: None,
            departure=GracefulExit(),
        )
        return job

    # ---- RingRendezvous ----

    def next(self, ring: int, progress: int, *, handing_over: bool = False) -> pb.Ring:
        self.before_ask()
        formed = self._ask(ring, progress, ended=False)
        if formed is None:
            raise DismissedError("the job is over")
        return formed

    def stand_by(self, ring: int, progress: int) -> pb.Ring | None:
        return self._ask(ring, progress, ended=True)

    def awaited(self, ring: int) -> bool:
        return bool(self._flags.stale.value >= ring)

    def _ask(self, ring: int, progress: int, *, ended: bool) -> pb.Ring | None:
        self._asks.send(("ask", ended, ring, progress, self.store.address))
        formed: pb.Ring | None = self._asks.recv()
        if formed is not None:
            self.seats.append(formed)
        return formed

    def rank_in(self, ring: pb.Ring) -> int:
        """This member's rank."""
        return list(ring.workers).index(self.worker_id)

    def joined(self, ring: int, records: int) -> None:
        self._joined = ring

    @property
    def authorized(self) -> bool:
        return not self._flags.silent.value

    def is_stale(self, ring: int) -> bool:
        return self._flags.stale.value >= ring or self.leaving

    @property
    def leaving(self) -> bool:
        return bool(self._flags.leaving.value)

    def beat(self) -> None:
        """Nothing: flags are shared with the test, so what a heartbeat would tell is known."""

    def may_commit(self) -> bool:
        self._asks.send(("commit",))
        return bool(self._asks.recv())

    def leave(self, ring: int, *, finished: bool) -> None:
        self._asks.send(("leave", finished))
        self._asks.recv()


def _run(
    program: Callable[..., None],
    worker: int,
    asks: Connection,
    pipe: Connection,
    flags: Flags,
    ring: int,
    args: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    group_module.MEET_S = MEET_S
    try:
        program(Member(worker, asks, pipe, flags, ring), *args)
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
        raise


@contextlib.contextmanager
def office(first: int) -> Iterator[Office]:
    """An office, and no process of it left behind."""
    one = Office(first)
    try:
        yield one
    finally:
        one.close()


def run(program: Callable[..., None], *args: Any, world: int) -> None:
    """The program in all members, which live until the last one has ended; an AssertionError of one
    is one here."""
    with office(world) as one:
        started = [one.start(_stay, program, *args) for _ in range(world)]
        for each in started:
            assert each.hear() == "ok"


def _stay(member: Member, program: Callable[..., None], *args: Any) -> None:
    program(member, *args)
    member.tell("ok")
    member.hear()


def tcp_sockets() -> list[list[str]]:
    """The fields of /proc/self/net of each TCP socket that this process has open."""
    ours = {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    }
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}", encoding="ascii") as file:
            found += [line.split() for line in list(file)[1:]]
    return [fields for fields in found if f"socket:[{fields[9]}]" in ours]
