"""Orders of a test to the cluster itself, at ``/control/WORD``, outside of the API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.cluster.faults import Faults
from tests.cluster.kinds import SERVICE_ACCOUNTS
from tests.cluster.kubelets import Kubelets
from tests.cluster.operations import Operations
from tests.cluster.rbac import Access
from tests.cluster.refused import Refused
from tests.cluster.store import Store
from tests.cluster.watches import Watches


class Control:
    """The words that a test may say.

    - ``compact``: all revisions so far are gone: 410 for a watch or a page from before.
    - ``watches``: ``drop`` cuts all; ``silent`` holds back everything; ``refused`` cuts new ones;
      ``bookmark_period_s``. The answer is the number of watches for each namespace.
    - ``fail``: the fields of :class:`tests.cluster.faults.Fault`.
    - ``heal``: takes back all orders to fail.
    - ``restart``: the API server is away for ``away_s``, then refuses everything for ``unsynced_s``
      with 403, as it does until it knows the Roles; all its connections break.
    - ``calls``: the number of requests by user, verb and resource.
    - ``token``: of the service account ``account`` in ``namespace``.
    - ``lose-node``, ``return-node``: ``name``; a node falls silent, its processes are gone unless
      it ``runs`` on, without its kubelet.
    - ``add-node``: see :meth:`tests.cluster.kubelets.Kubelets.add`.
    - ``out-of-memory``, ``evict``: a pod by ``namespace`` and ``name``; by its node.
    """

    def __init__(
        self,
        store: Store,
        access: Access,
        watches: Watches,
        faults: Faults,
        operations: Operations,
        cut_all: Callable[[], None],
    ) -> None:
        self._store, self._access, self._watches, self._faults = store, access, watches, faults
        self._operations, self._cut_all = operations, cut_all
        self._words: dict[str, Callable[..., Any]] = {
            "compact": self._compact, "watches": self._order_watches, "fail": self._fail,
            "heal": self._heal, "calls": lambda: dict(faults.calls), "token": self._token,
            "restart": self._restart,
        }  # fmt: skip

    def add_nodes(self, kubelets: Kubelets) -> None:
        """The words about nodes and what runs there."""
        self._words |= {
            "lose-node": kubelets.lose, "return-node": kubelets.give_back,
            "add-node": kubelets.add, "out-of-memory": kubelets.run_out_of_memory,
            "evict": kubelets.evict,
        }  # fmt: skip

    async def answer(self, request: web.Request) -> Any:
        action = self._words.get(request.match_info["words"])
        if action is None:
            raise Refused(404, f"no such order: {request.match_info['words']}")
        return action(**json.loads(await request.text() or "{}"))

    def _compact(self) -> None:
        self._store.compact()
        self._operations.forget_pages()

    def _order_watches(
        self,
        *,
        drop: bool = False,
        silent: bool | None = None,
        refused: bool | None = None,
        bookmark_period_s: float | None = None,
    ) -> dict[str, int]:
        if bookmark_period_s is not None:
            self._watches.bookmark_period_s = bookmark_period_s
        if refused is not None:
            self._watches.refused = refused
        if silent is not None:
            self._watches.set_silent(silent)
        if drop:
            self._watches.drop()
        return self._watches.by_namespace()

    def _fail(self, **words: Any) -> None:
        self._faults.order(words)

    def _restart(self, away_s: float = 1.0, unsynced_s: float = 2.0) -> None:
        self._faults.restart(away_s, unsynced_s)
        self._cut_all()

    def _heal(self) -> None:
        self._faults.clear()
        self._order_watches(silent=False, refused=False, bookmark_period_s=60.0)

    def _token(self, namespace: str, account: str) -> str:
        return self._access.token_of(self._store.get(SERVICE_ACCOUNTS, namespace, account))
