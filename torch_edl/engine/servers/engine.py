"""Asynchronous or synchronous SGD on parameter servers.

Each update is a pull, its minibatches, and a push. With ``staleness`` 1 or more, the pull of the
next update and the push of the last travel while this one is computed; otherwise they strictly
follow each other. Rows that could not be found ahead of time are pulled when the model asks for
them. One push at most is on its way, so a server gets them in order. Between the minibatches of an
update the dense parameters continue as the user's optimizer moves them, here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.config import JobConfig
from torch_edl.data.batch import Minibatch, Update
from torch_edl.engine.servers.plan import Plan
from torch_edl.engine.servers.served import PlannedUpdate, ServedModel
from torch_edl.errors import ServersLostError, UsageError
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import Lease
from torch_edl.ps_client.client import Pending, PsClient, PullResult
from torch_edl.ps_client.connection import Resolve
from torch_edl.ps_client.partition import Floats, TableIds
from torch_edl.wire import master_pb2, pserver_pb2

log = logging.getLogger(__name__)


class ServersEngine:
    """See :class:`~torch_edl.engine.base.LeasedEngine`.

    Args:
        resolve: says which server has a shard now; None: nobody does.
    """

    knows_marks = False

    def __init__(
        self,
        served: ServedModel,
        *,
        config: JobConfig,
        token: str,
        status: WorkerStatus,
        resolve: Resolve | None = None,
    ) -> None:
        self.model = served.model
        self._served = served
        self._config = config
        self._token = token
        self._resolve = resolve
        self._status = status
        # Sync mode answers whether a gradient was taken before the next one may be computed.
        self._sync = config.train.mode == "sync"
        self.depth = 0 if self._sync else config.train.staleness
        self._ahead: deque[PlannedUpdate] = deque()
        self._open: PlannedUpdate | None = None
        self._pushed: tuple[Update, Pending[bool]] | None = None
        self._done: list[Update] = []
        self._client: PsClient | None = None
        self._incarnation = self._trained = self._acked = 0
        self._known: PullResult | None = None
        self._lost: ServersLostError | None = None
        self._forgiving = self._keeps_gradients = False
        self._at_last = True
        # Nobody tells when the backward of a script begins.
        watches = served.is_script and self.depth
        served.attach(self._before_step, self._pull_ahead if watches else None)

    # ---- servers ----

    def connect(self, cluster: master_pb2.Cluster) -> None:
        """Meets the servers of a cluster and tells them what to hold."""
        self.close()
        client = PsClient(
            cluster, job=self._config.name, token=self._token, resolve=self._resolve,
            wire_dtype=self._config.cluster.wire_dtype,
        )  # fmt: skip
        served = self._served
        try:
            client.initialize(
                served.initial(), served.tables(), served.kernel, seed=self._config.train.seed
            )
        except BaseException as error:
            client.close()
            if isinstance(error, UsageError) and "restored" in str(error):
                said = served.complaint(cluster.restored_from, str(error))
                raise UsageError(said) from None
            raise
        self._client, self._incarnation = client, cluster.incarnation
        served.connect(client.layout, client.exact, self._pull_rows)

    def follow(self, newest: int) -> None:
        """Servers up to this incarnation listen. Called by the thread of the heartbeat."""
        if (client := self._client) is not None:
            client.follow(newest)

    def close(self) -> None:
        """Forgets the servers and everything that was on its way."""
        if self._client is not None:
            self._client.close()
        self._client = self._open = self._pushed = self._known = None
        self._served.use(None, 0)
        self._ahead.clear()
        self._done.clear()
        self._incarnation = self._trained = self._acked = 0

    def committed(self, lease: Lease) -> int:
        """The lowest mark of all servers."""
        return self._servers.watermarks(lease.task_id)

    @property
    def _servers(self) -> PsClient:
        if self._client is None:
            raise ServersLostError("not connected")
        return self._client

    # ---- an update ----

    def prefetch(self, update: Update) -> None:
        """Plans an update, and pulls for it as soon as the staleness allows."""
        self._ahead.append(PlannedUpdate(update, self._plan(update)))
        self._pull_ahead()

    def begin(self, update: Update, minibatch: Minibatch) -> Any:
        """Loads the parameters before the first minibatch, and shows the model the rows of each."""
        planned = self._opened(update)
        self._served.use(planned.plan, minibatch.number)
        self._at_last = minibatch.number + 1 == update.count
        if self._served.is_script:
            return minibatch.batch
        return replace(minibatch.batch, features=self._served.given(minibatch.batch.features))

    def backward(self, compute: Callable[[], None] | None) -> bool:
        """Starts the pulls that acknowledgements allow now."""
        self._pull_ahead()
        if compute is not None:
            compute()
        return compute is not None

    def commit(self, update: Update) -> bool:
        """Pushes what was collected. In sync mode the push is acknowledged when this returns."""
        if self._incarnation != update.incarnation:
            known = f"of incarnation {update.incarnation}, the servers are at {self._incarnation}"
            raise ServersLostError(f"the lease is {known}")
        if self._open is None and update.count:
            raise ServersLostError("the connection was closed within an update")
        planned = self._opened(update)
        self._served.use(None, 0)
        self._forgiving = False
        if self._lost is not None:
            raise self._lost
        self._keeps_gradients = self._served.is_script and not planned.steps
        if self._keeps_gradients:
            self._served.forbid_accumulation()
        if self._sync:
            accepted = self._push(planned).wait()
            self._open = None
            if not accepted:
                log.debug(
                    "gradient of versions %s is too old: to be computed again", planned.versions
                )
                planned.pull = planned.versions = None
                planned.steps = 0
                self._ahead.appendleft(planned)
                return False
            self._done.append(update)
            return True
        self._settle_push()
        self._pushed, self._open = (update, self._push(planned)), None
        self._trained += 1
        return True

    def acknowledged(self, *, wait: bool = False) -> list[Update]:
        if wait:
            self._settle_push()
        done, self._done = self._done, []
        return done

    def settle(self) -> bool:
        """An update that the script left is not pushed, nor are those after it begun."""
        self._open = None
        self._ahead.clear()
        self._served.use(None, 0)
        self._forgiving = False
        return False

    @property
    def broken(self) -> bool:
        """Whether rows could not be pulled."""
        return self._lost is not None

    @property
    def steps_ahead(self) -> int:
        """Updates that :meth:`acknowledged` did not report yet, the open one once it is stepped."""
        is_stepped = self._open is not None and self._open.steps > 0
        return is_stepped + (self._pushed is not None) + len(self._done)

    @property
    def in_update(self) -> bool:
        """Whether the body has a minibatch in hand."""
        return self._open is not None

    def _opened(self, update: Update) -> PlannedUpdate:
        """The update that is open, which this one is from now on: the parameters are loaded."""
        if self._open is not None:
            assert self._open.update is update, "an update begins before the last was committed"
            return self._open
        if not self._ahead:
            self.prefetch(update)
        planned = self._ahead.popleft()
        assert planned.update is update, "updates are begun in the order of their prefetch"
        if planned.pull is None:
            self._settle_push()
            planned.pull = self._pull(planned.plan)
        result = planned.pull.wait()
        self._load(result)
        planned.plan.take(result.rows)
        planned.versions = result.versions
        self._served.forget(gradients=not self._keeps_gradients)
        self._lost, self._forgiving = None, self._served.is_script
        self._open = planned
        return planned

    def _before_step(self) -> None:
        """The gradients of a minibatch are complete: of one backward, or of several.

        Between two minibatches of an update the user's optimizer moves this process's dense
        parameters on, with a state of its own. The next pull replaces the parameters; but the
        gradients that are pushed were taken along the way that the model goes rather than all at
        its beginning. Measured on DeepFM, 4 workers, updates of 8: half the loss that the delay
        costs otherwise. After the last minibatch the optimizer finds no gradient: the servers
        move the model.
        """
        planned = self._open
        if planned is None:
            return
        if planned.steps and self._served.is_script:
            raise UsageError(
                "a second step of the optimizer in one batch: parameter servers apply one update "
                "for each batch; step once, or use --strategy allreduce"
            )
        lost = self._lost is not None or self._client is None
        self._served.collect(planned.plan, last=self._at_last, lost=lost)
        planned.steps += 1

    # ---- pulls and pushes ----

    def _pull_ahead(self) -> None:
        """Starts the pulls that the staleness allows now."""
        acked = self._acked
        if self._pushed is not None and self._pushed[1].done():
            acked += 1
        # The update that is open is neither ahead nor trained.
        for index, planned in enumerate(self._ahead, start=self._trained + self.in_update):
            if planned.pull is None and acked >= index - self.depth:
                planned.pull = self._pull(planned.plan)

    def _pull(self, plan: Plan[Any, Any]) -> Pending[PullResult]:
        # A guess must not make rows of ids that nobody looks up; the push makes those that lack.
        return self._servers.pull(plan.tables, known=self._known, read_only=self._served.is_script)

    def _pull_rows(self, tables: Sequence[TableIds]) -> Sequence[Floats]:
        """Rows that no plan had.

        Within an update of a script, servers that are lost raise nothing in the middle of its
        model: the rows are zeros, and :meth:`commit` raises.
        """
        read_only = not self._served.training
        if self._lost is None:
            try:
                return self._servers.pull(tables, dense=False, read_only=read_only).wait().rows
            except ServersLostError as error:
                if not self._forgiving:
                    raise
                log.info("rows cannot be pulled: %s", error)
                self._lost = error
        return [np.zeros((len(t.ids.unique), t.dim), np.float32) for t in tables]

    def _plan(self, update: Update) -> Plan[Any, Any]:
        batches = [minibatch.batch for minibatch in update.minibatches]
        is_script = self._served.is_script
        return self._served.plan(batches if is_script else [b.features for b in batches])

    def _load(self, result: PullResult) -> None:
        self._served.load(result.dense)
        self._known = result
        self._status.version = max(result.versions)

    def _push(self, planned: PlannedUpdate) -> Pending[bool]:
        update, client = planned.update, self._servers
        assert planned.versions is not None
        # An update without a gradient moves the watermark and changes nothing.
        made = planned.steps > 0
        return client.push(
            self._served.dense_gradients() if made else None,
            planned.plan.gradients() if made else [],
            records=pserver_pb2.RecordRange(
                task_id=update.lease.task_id if update.lease else 0,
                first=update.first,
                last=update.last,
            ),
            versions=planned.versions,
            retired_before=update.retired_before,
            learning_rates=self._served.learning_rates(max(planned.versions)),
            exact=self._served.exact_changes() if made else None,
        )

    def _settle_push(self) -> None:
        """Waits until the push under way is acknowledged."""
        if self._pushed is not None:
            update, push = self._pushed
            push.wait()
            self._pushed = None
            self._done.append(update)
            self._acked += 1

    # ---- outside of updates ----

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Any], Any]]:
        """The dense parameters of now; rows are pulled as they are asked for."""
        self._load(self._servers.pull([]).wait())
        self._served.forget()
        self._served.use(None, 0)
        self._lost, self._forgiving = None, self._served.is_script
        try:
            yield self._prepared
        finally:
            self._forgiving = False
        if self._lost is not None:
            raise self._lost

    def _prepared(self, features: Any) -> Any:
        """Pulls the rows of all tables at once."""
        plan = self._served.plan([features])
        if plan.tables:
            plan.take(self._servers.pull(plan.tables, dense=False, read_only=True).wait().rows)
        self._served.use(plan, 0)
        return self._served.given(features)

    def settled(self) -> PsClient:
        """The servers, when they have acknowledged what was pushed.

        Raises:
            ServersLostError: they do not answer.
        """
        self._settle_push()
        return self._servers

    def snapshot(self) -> Callable[[Path], Snapshot]:
        """The servers hold the model; the master asks them."""
        raise AssertionError("a snapshot of a model on servers is the servers' to write")
