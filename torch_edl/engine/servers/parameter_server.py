"""Asynchronous or synchronous SGD on parameter servers.

Each window is a pull, ``local_steps`` minibatches, and a push. With ``staleness`` 1 or more the
pull of the next window and the push of the last travel while this one is computed; with 0 they
strictly follow each other. One push at most is on its way, so a server gets them in order.
Within a window the dense parameters go on as the user's optimizer moves them, here.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from torch_edl.checkpoint.manifest import Snapshot
from torch_edl.config import JobConfig
from torch_edl.contract import Contract
from torch_edl.data.batch import Batch
from torch_edl.data.loader import Window
from torch_edl.engine import same_model
from torch_edl.engine.base import Committed, Step, UserCodeError
from torch_edl.engine.servers.dense import ExactBuffers, FlatParameters, dense_parameters
from torch_edl.engine.servers.rows import Plan, ServerRows
from torch_edl.errors import EdlError, ServersLostError, UsageError
from torch_edl.master_client.heartbeat import WorkerStatus
from torch_edl.nn import table_state
from torch_edl.optim import group_of, optimizer_config
from torch_edl.ps_client.client import (
    Floats,
    PendingPull,
    PendingPush,
    PsClient,
    PullResult,
    TableIds,
)
from torch_edl.wire import master_pb2, pserver_pb2

log = logging.getLogger(__name__)


@dataclass
class Planned:
    """A window, the rows that it needs, and the pull that is on its way."""

    window: Window
    plan: Plan
    pull: PendingPull | None = None


@dataclass
class _Pushed:
    committed: Committed
    push: PendingPush


class ParameterServerStrategy:
    """See :class:`~torch_edl.engine.base.Strategy`.

    Args:
        contract: the user's loss; None: the script calls its model by itself, see
            :class:`~torch_edl.engine.servers.own_loop.OwnLoop`.
        optimizer: read for its kernel and hyperparameters; it steps between the minibatches of a
            window only.
        scheduler: drives the learning rates by the servers' version.
    """

    def __init__(
        self,
        contract: Contract | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any | None,
        *,
        config: JobConfig,
        token: str,
        progress: WorkerStatus,
    ) -> None:
        self.model = model
        self._config = config
        self._token = token
        self._progress = progress
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._scheduled = 0
        self._unscheduled = copy.deepcopy(
            ([g["lr"] for g in optimizer.param_groups], scheduler and scheduler.state_dict())
        )
        self._kernel = optimizer_config(optimizer)
        if contract is not None:
            self._step = Step(
                contract, model, on_nan=config.train.on_nan, log_layers=config.train.log_layers
            )
        self._rows = ServerRows(model, model if contract is None else self._step.forward)
        self._held = dense_parameters(model, optimizer)
        self._initial = {name: each.value() for name, each in self._held.items()}
        # Sync mode answers whether a gradient was taken before the next one may be computed.
        sync = config.train.mode == "sync"
        self.depth = 0 if sync else config.train.staleness
        self._ahead: deque[Planned] = deque()
        self._pushed: _Pushed | None = None
        self._trained = self._acked = 0
        self._busy = 0  # 1 while a window is computed, which is neither ahead nor trained
        self._client: PsClient | None = None
        self._flat: FlatParameters
        self._exact: ExactBuffers
        self._known: list[int] | None = None

    # ---- servers ----

    def connect(self, cluster: master_pb2.Cluster) -> None:
        """Meets the servers of a cluster and tells them what to hold."""
        self.close()
        client = PsClient(
            cluster.servers,
            job=self._config.name,
            incarnation=cluster.incarnation,
            token=self._token,
        )
        try:
            client.initialize(
                self._initial, self._table_infos(), self._kernel, seed=self._config.train.seed
            )
        except BaseException as error:
            client.close()
            # Servers tell so of what they were to hold.
            if isinstance(error, UsageError) and "restored" in str(error):
                said = same_model.complaint(cluster.restored_from, str(error))
                raise UsageError(said) from None
            raise
        self._rewind_schedule()
        self._client = client
        self._flat = FlatParameters(self._held, client.layout)
        self._exact = ExactBuffers(self._held, client.exact)
        self._rows.connect(client.servers, self._pull_rows)

    def close(self) -> None:
        """Forgets the servers and everything that was on its way."""
        if self._client is not None:
            self._client.close()
        self._client = None
        self._ahead.clear()
        self._pushed = None
        self._trained = self._acked = 0
        self._known = None

    def committed(self, lease: master_pb2.LeaseMessage) -> int:
        """The lowest mark of all servers."""
        return self._servers.watermarks(lease.task_id)

    @property
    def _servers(self) -> PsClient:
        if self._client is None:
            raise ServersLostError("not connected")
        return self._client

    def _table_infos(self) -> list[pserver_pb2.EmbeddingTableInfo]:
        group = group_of(self._optimizer)
        infos = {t.table: t.info(group(t.weight)) for t in self._rows.tables}
        return list(infos.values())

    # ---- training ----

    def prefetch(self, window: Window) -> None:
        """Plans a window, and pulls for it as soon as the staleness allows."""
        self._ahead.append(Planned(window, self._plan(window.batches)))
        self._pull_ahead()

    def train(self, window: Window, retired_before: int) -> list[Committed]:
        """Trains on the oldest prefetched window."""
        if not self._ahead:
            self.prefetch(window)
        planned = self._ahead.popleft()
        assert planned.window is window, "windows are trained in the order of their prefetch"
        if self._config.train.mode == "sync":
            return self._train_until_accepted(planned, retired_before)
        committed = []
        if planned.pull is None:
            committed += self._settle()
            planned.pull = self._pull(planned.plan)
        steps, nan_steps, versions = self._compute(planned)
        committed += self._settle()
        self._pushed = self._push(planned, steps, nan_steps, versions, retired_before)
        self._trained += 1
        return committed

    def finish(self) -> list[Committed]:
        """Waits for the last push."""
        return self._settle()

    def _train_until_accepted(self, planned: Planned, retired_before: int) -> list[Committed]:
        while True:
            planned.pull = self._pull(planned.plan)
            steps, nan_steps, versions = self._compute(planned)
            pushed = self._push(planned, steps, nan_steps, versions, retired_before)
            if pushed.push.wait().accepted:
                return [pushed.committed]
            log.debug("gradient of versions %s is too old: computing it again", versions)

    def _pull_ahead(self) -> None:
        """Starts the pulls that the staleness allows now."""
        if self._pushed is not None and self._pushed.push.done():
            acked = self._acked + 1
        else:
            acked = self._acked
        for index, planned in enumerate(self._ahead, start=self._trained + self._busy):
            if planned.pull is None and acked >= index - self.depth:
                planned.pull = self._pull(planned.plan)

    def _pull(self, plan: Plan) -> PendingPull:
        return self._servers.pull(plan.tables, known=self._known)

    def _pull_rows(self, tables: Sequence[TableIds]) -> Sequence[Floats]:
        read_only = not self.model.training
        return self._servers.pull(tables, dense=False, read_only=read_only).wait().rows

    def _plan(self, batches: Sequence[Batch]) -> Plan:
        try:
            return self._rows.plan(batches)
        except EdlError:
            raise
        except Exception as error:
            raise UserCodeError(f"the model raised {type(error).__name__}: {error}") from error

    def _compute(self, planned: Planned) -> tuple[int, int, list[int]]:
        """Gradients of a window into the parameters and row blocks; steps, NaN steps, versions."""
        assert planned.pull is not None
        result = planned.pull.wait()
        self._load(result)
        planned.plan.take(result.rows)
        self._flat.forget()
        self._busy = 1
        try:
            steps = nan_steps = 0
            for index, batch in enumerate(planned.window.batches):
                self._rows.use(planned.plan, index)
                features = self._rows.given(batch.features)
                loss = self._step.loss(replace(batch, features=features))
                self._pull_ahead()
                if loss is None:
                    nan_steps += 1
                    continue
                self._step.backward(loss, batch)
                self._flat.collect()
                if index + 1 < len(planned.window.batches):
                    self._step_locally()
                steps += 1
                self._progress.add_loss(self._step.last_loss)
        finally:
            self._busy = 0
        return steps, nan_steps, result.versions

    def _step_locally(self) -> None:
        """Between two minibatches of a window: moves this worker's dense parameters on.

        The user's optimizer does it, with a state of this worker's own. The next pull replaces
        the parameters; but the gradients that are pushed were taken along the way that the model
        goes rather than all at its beginning. Measured on DeepFM, 4 workers, windows of 8: half
        the loss that the delay costs otherwise.
        """
        self._optimizer.step()
        self._flat.clear_gradients()

    def _load(self, result: PullResult) -> None:
        for server, values in enumerate(result.dense):
            if values is not None:
                self._flat.load(server, values)
        self._flat.spread()
        self._known = result.versions
        self._progress.version = result.version

    def _push(
        self,
        planned: Planned,
        steps: int,
        nan_steps: int,
        versions: list[int],
        retired_before: int,
    ) -> _Pushed:
        window, client = planned.window, self._servers
        push = client.push(
            # A window without a finite loss moves the mark and changes nothing.
            self._flat.take_gradients() if steps else None,
            planned.plan.gradients(client.servers),
            records=pserver_pb2.RecordRange(
                task_id=window.lease.task_id,
                first=window.first,
                last=window.last,
            ),
            versions=versions,
            retired_before=retired_before,
            learning_rates=self._learning_rates(max(versions)),
            exact=self._exact.changed() if steps else None,
        )
        loss = self._step.last_loss if window.batches else math.nan
        return _Pushed(Committed(window, steps + nan_steps, nan_steps, loss), push)

    def _settle(self) -> list[Committed]:
        """Waits until the push under way is acknowledged."""
        if self._pushed is None:
            return []
        self._pushed.push.wait()
        done, self._pushed = self._pushed.committed, None
        self._acked += 1
        return [done]

    def _rewind_schedule(self) -> None:
        """Servers that were restored are at an earlier version than those before them."""
        if self._scheduler is None:
            return
        rates, state = copy.deepcopy(self._unscheduled)
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._scheduler.load_state_dict(state)
        self._scheduled = 0

    def _learning_rates(self, version: int) -> list[float]:
        if self._scheduler is None:
            return []
        with warnings.catch_warnings():
            # The optimizer steps on the servers; torch cannot see that.
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
            while self._scheduled < version * self._config.train.local_steps:
                self._scheduler.step()
                self._scheduled += 1
        return [float(g["lr"]) for g in self._optimizer.param_groups]

    # ---- evaluation ----

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[Any], Any]]:
        """The dense parameters of now; rows are pulled as they are asked for."""
        self._load(self._servers.pull([]).wait())
        self.model.eval()
        try:
            with torch.no_grad():
                yield self._predict
        finally:
            self.model.train()

    def _predict(self, features: Any) -> Any:
        plan = self._plan([Batch(features, None, 0)])
        if plan.tables:
            plan.take(self._servers.pull(plan.tables, dense=False, read_only=True).wait().rows)
        self._rows.use(plan, 0)
        return self._step.predict(self._rows.given(features))

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model as it is on the servers now; this process's copy stays as it is.

        Raises:
            ServersLostError: they cannot be had.
        """
        client = self._servers
        state: dict[str, torch.Tensor] = {}
        pulled = client.pull([]).wait()
        for segments, flat in zip(client.layout, pulled.dense, strict=True):
            for segment in segments:
                assert flat is not None
                each = self._held[segment.name]
                value = flat[segment.start : segment.start + segment.size].copy()
                tensor = torch.from_numpy(value).view(segment.shape).to(each.tensor.dtype)
                state |= dict.fromkeys([segment.name, *each.aliases], tensor)
        for name, each in self._held.items():
            if each.is_exact:
                tensor = each.tensor.detach().to("cpu", copy=True)
                state |= dict.fromkeys([name, *each.aliases], tensor)
        for table in {t.table: t for t in self._rows.tables}.values():
            name, dim, paths = table.table, table.embedding_dim, table.modules_of_table
            if table.num_embeddings is None:
                state |= table_state.of_rows(paths, *client.rows(name, dim))
            else:
                weight = client.weight(name, table.num_embeddings, dim)
                state |= table_state.of_weight(paths, weight)
        return state

    def snapshot(self, directory: str) -> Snapshot:
        """The servers hold the model; the master asks them."""
        raise AssertionError(f"a snapshot into {directory} is the servers' to write")
