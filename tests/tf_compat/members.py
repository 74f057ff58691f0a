"""Members of rings in threads of one process, without a master."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from typing import Any

from tf_compat.collectives.stream_listener import StreamListener
from tf_compat.replica import KerasReplica
from tf_compat.ring import ReplicatedKerasModel
from tf_compat.trained import TrainedModel
from torch_edl.engine.ring.engine import RingEngine
from torch_edl.engine.ring.rendezvous import RingRendezvous
from torch_edl.interfaces import Batch, Minibatch, Update
from torch_edl.wire import master_pb2 as pb

HOST, TOKEN = "127.0.0.1", "ring-test"


class Rendezvous(RingRendezvous):
    """Gives the rings that a test makes, one after the other."""

    host = HOST
    meet_s = 30.0

    def __init__(self, worker_id: int, rings: Iterator[pb.Ring]) -> None:
        self.worker_id = worker_id
        self._rings = rings

    def next(self, ring: int, progress: int, *, handing_over: bool = False) -> pb.Ring:
        """See :class:`~torch_edl.engine.ring.rendezvous.RingRendezvous`."""
        return next(self._rings)


@contextmanager
def keras_engine(
    trained: TrainedModel, worker_id: int, make_rings: Callable[[str], Iterator[pb.Ring]]
) -> Iterator[RingEngine]:
    """The engine of a member; ``make_rings`` is given the address of the member."""
    with closing(StreamListener(HOST, TOKEN)) as meeting:
        model = ReplicatedKerasModel(trained, KerasReplica(trained, 7), meeting)
        rendezvous = Rendezvous(worker_id, make_rings(meeting.address))
        with closing(RingEngine(model, rendezvous)) as engine:
            yield engine


def first_ring(store: str, workers: Sequence[int]) -> pb.Ring:
    """A ring of a new model: all take that of rank 0."""
    return pb.Ring(number=1, workers=workers, store=store, fresh=True, heal=True)


def part(first: int, records: int, batch: Batch | None, offset: int = 0) -> Update:
    """Return a member's part of the records of an update; None: the member has none."""
    one = Batch(None, None, 0) if batch is None else batch
    minibatch = Minibatch(0, first + offset, one.size, one)
    return Update(first, first + records, [minibatch], 1, records)


def run(engine: RingEngine, body: Callable[[Batch], float], update: Update) -> float:
    """Computes and commits an update; the loss of the member."""
    loss = 0.0
    for minibatch in update.minibatches:
        loss = body(engine.begin(update, minibatch))
    assert engine.commit(update)
    return loss


def together(calls: Sequence[Callable[[], Any]], engines: Iterable[RingEngine] = ()) -> list[Any]:
    """What each of them returns. If one raises, the engines no longer wait for any member."""
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(call) for call in calls]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        if any(each.exception() for each in done):
            for engine in engines:
                engine.membership.interrupt(engine.membership.ring)
        return [each.result() for each in [*done, *running]][len(done) :]
