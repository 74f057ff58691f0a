"""Asynchronous or synchronous SGD on parameter servers.

Each update is a pull, its minibatches, and a push. With ``staleness`` of 1 or more, the pull of the
next update and the push of the previous update overlap with the computation; otherwise they follow
each other strictly. Rows that were not predicted are pulled when the model looks them up. At most
one push is in flight, so a server receives pushes in order. Between the minibatches of an update,
the user's optimizer changes the dense parameters in this process.
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
from torch_edl.engine.replica import other_model
from torch_edl.engine.servers.served import PlannedUpdate, RowPlan, ServedModel
from torch_edl.errors import ServersLostError, ServersReplacedError, UsageError
from torch_edl.interfaces import Minibatch, Update
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.master_client.leases import HeldLease
from torch_edl.ps_client.client import Pending, PsClient, PullResult
from torch_edl.ps_client.connection import Resolve
from torch_edl.ps_client.partition import Floats, TableIds
from torch_edl.wire import master_pb2, pserver_pb2

log = logging.getLogger(__name__)


class ServersEngine:
    """Engine for parameter servers; see :class:`~torch_edl.interfaces.LeasedEngine`.

    Args:
        resolve: returns the current server of a shard; None if lost servers are not replaced.
        is_sound: called before the optimizer of a script steps, with the update and its minibatch;
            returns False if the gradients were discarded and the update is left out. None: all
            gradients are pushed.
    """

    holds_model = False

    def __init__(
        self,
        served: ServedModel,
        *,
        config: JobConfig,
        token: str,
        status: WorkerStatus,
        resolve: Resolve | None = None,
        is_sound: Callable[[Update, Minibatch], bool] | None = None,
    ) -> None:
        self.model = served.model
        self._served = served
        self._rows = served.rows
        self._config = config
        self._token = token
        self._resolve = resolve
        self._status = status
        # In sync mode, a gradient must be accepted or rejected before the next one is computed.
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
        # Lost servers raise no error inside a script's model; see `_pull_rows`.
        self._forgiving = False
        # The script has not called the optimizer, so its gradients belong to the next update.
        self._keeps_gradients = False
        self._is_sound = is_sound
        self._minibatch: Minibatch | None = None
        self._at_last = True  # the current minibatch is the last one of its update
        # The engine is not told when the backward of a script begins, so hooks observe it.
        watches = served.is_script and self.depth
        served.attach(self._before_step, self._pull_ahead if watches else None)

    # ---- servers ----

    def connect(self, cluster: master_pb2.Cluster) -> None:
        """Connect to the servers of a cluster and send them the initial model."""
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
                raise UsageError(other_model(cluster.restored_from, error)) from None
            raise
        self._client, self._incarnation = client, cluster.incarnation
        served.connect(client.layout, client.exact, client.memory)
        self._rows.connect(len(client.layout), self._pull_rows)

    def follow(self, newest: int) -> None:
        """Connect to servers up to this incarnation. Called by the heartbeat thread."""
        if (client := self._client) is not None:
            client.follow(newest)

    def close(self) -> None:
        """Close the connection, and forget all pulls, pushes and planned updates."""
        if self._client is not None:
            self._client.close()
        self._client = self._open = self._pushed = self._known = None
        self._rows.use(None, 0)
        self._ahead.clear()
        self._done.clear()
        self._incarnation = self._trained = self._acked = 0

    def committed(self, lease: HeldLease) -> int:
        """Return the smallest offset of all servers."""
        return self._servers.watermarks(lease.task_id)

    @property
    def _servers(self) -> PsClient:
        if self._client is None:
            raise ServersLostError("not connected")
        return self._client

    # ---- an update ----

    def prefetch(self, update: Update) -> None:
        """Plan an update, and start its pull as soon as the staleness permits."""
        batches = [minibatch.batch for minibatch in update.minibatches]
        if not self._served.is_script:
            batches = [batch.features for batch in batches]
        self._ahead.append(PlannedUpdate(update, self._rows.plan(batches)))
        self._pull_ahead()

    def begin(self, update: Update, minibatch: Minibatch) -> Any:
        """Load the parameters before the first minibatch, and select the minibatch's rows."""
        planned = self._opened(update)
        self._rows.use(planned.plan, minibatch.number)
        self._at_last = minibatch.number + 1 == update.count
        self._minibatch = minibatch
        if self._served.is_script:
            return minibatch.batch
        return replace(minibatch.batch, features=self._rows.given(minibatch.batch.features))

    def backward(self, compute: Callable[[], None] | None) -> bool:
        """Start the pulls that the staleness now permits, and run backward."""
        self._pull_ahead()
        if compute is not None:
            compute()
        return compute is not None

    def commit(self, update: Update) -> bool:
        """Push the collected gradients. In sync mode, wait for the answer of the servers."""
        assert update.lease is not None
        leased, current = update.lease.incarnation, self._incarnation
        if leased != current:
            raise ServersReplacedError(
                f"the lease is of incarnation {leased}, the servers are at {current}"
            )
        if self._open is None and update.count:
            raise ServersReplacedError("the connection was closed within an update")
        planned = self._opened(update)
        self._rows.use(None, 0)
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
        """Discard the update that the script left, and all updates planned after it."""
        self._open = None
        self._ahead.clear()
        self._rows.use(None, 0)
        self._forgiving = False
        return False

    @property
    def broken(self) -> bool:
        """True if rows could not be pulled."""
        return self._lost is not None

    @property
    def steps_ahead(self) -> int:
        """Updates not yet reported by :meth:`acknowledged`; includes a stepped current update."""
        is_stepped = self._open is not None and self._open.steps > 0
        return is_stepped + (self._pushed is not None) + len(self._done)

    @property
    def in_update(self) -> bool:
        """True while the body processes a minibatch."""
        return self._open is not None

    def _opened(self, update: Update) -> PlannedUpdate:
        """Return the current update; begin it and load its parameters if there is none."""
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
        """Collect the gradients of a minibatch, which are complete when the optimizer steps.

        Between the minibatches of an update, the user's optimizer changes this process's dense
        parameters, with a local state. The next pull replaces the parameters, but each pushed
        gradient was computed at the parameters that the minibatches before it had reached, instead
        of all gradients at the pulled parameters. This halves the loss that the delay costs
        (measured on DeepFM, 4 workers, updates of 8 minibatches). After the last minibatch, the
        optimizer finds no gradients, because the servers apply them.
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
        if not lost and self._is_sound is not None:
            assert self._minibatch is not None
            if not self._is_sound(planned.update, self._minibatch):
                return
        self._served.collect(planned.plan, last=self._at_last, lost=lost)
        planned.steps += 1

    # ---- pulls and pushes ----

    def _pull_ahead(self) -> None:
        """Start the pulls that the staleness now permits.

        An update may be pulled as soon as at most ``depth`` of the updates before it are not
        acknowledged by the servers.
        """
        acked = self._acked
        if self._pushed is not None and self._pushed[1].done():
            acked += 1
        started = self._trained
        if self.in_update:
            started += 1  # the current update is no longer in _ahead, and not yet in _trained
        for earlier, planned in enumerate(self._ahead, start=started):
            if planned.pull is None and acked >= earlier - self.depth:
                planned.pull = self._pull(planned.plan)

    def _pull(self, plan: RowPlan[Any, Any]) -> Pending[PullResult]:
        # Predicted ids may be wrong and must not create rows. A push creates missing rows.
        return self._servers.pull(plan.tables, known=self._known, read_only=self._served.is_script)

    def _pull_rows(self, tables: Sequence[TableIds]) -> Sequence[Floats]:
        """Pull rows that were not planned.

        If servers are lost within a script's update, no error is raised in the middle of its model:
        the rows are zeros, and :meth:`commit` raises ServersLostError.
        """
        read_only = not self._rows.training
        if self._lost is None:
            try:
                return self._servers.pull(tables, dense=False, read_only=read_only).wait().rows
            except ServersLostError as error:
                if not self._forgiving:
                    raise
                log.info("rows cannot be pulled: %s", error)
                self._lost = error
        return [np.zeros((len(t.ids.unique), t.dim), np.float32) for t in tables]

    def _load(self, result: PullResult) -> None:
        self._served.load(result.dense)
        self._known = result
        self._status.version = max(result.versions)

    def _push(self, planned: PlannedUpdate) -> Pending[bool]:
        update, client = planned.update, self._servers
        assert planned.versions is not None
        # An update without a gradient advances the watermark only.
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
        """Wait until the push in flight is acknowledged."""
        if self._pushed is not None:
            update, push = self._pushed
            push.wait()
            self._pushed = None
            self._done.append(update)
            self._acked += 1

    # ---- outside of updates ----

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Any], Any]]:
        """Load the current dense parameters; rows are pulled when they are looked up."""
        self._load(self._servers.pull([]).wait())
        self._served.forget()
        self._rows.use(None, 0)
        self._lost, self._forgiving = None, self._served.is_script
        try:
            yield self._prepared
        finally:
            self._forgiving = False
        if self._lost is not None:
            raise self._lost

    def _prepared(self, features: Any) -> Any:
        """Pull the rows of all tables in one call, and return the features for the model."""
        plan = self._rows.plan([features])
        if plan.tables:
            plan.take(self._servers.pull(plan.tables, dense=False, read_only=True).wait().rows)
        self._rows.use(plan, 0)
        return self._rows.given(features)

    def settled(self) -> PsClient:
        """Wait until the servers have acknowledged all pushes, and return their client.

        Raises:
            ServersLostError: the servers do not answer.
        """
        self._settle_push()
        return self._servers

    def snapshot(self) -> Callable[[Path], Snapshot]:
        """Raise AssertionError: the servers hold the model and write snapshots for the master."""
        raise AssertionError("a snapshot of a model on servers is the servers' to write")
