"""Orders of a test to the cluster itself, at ``/control/WORD``, outside of the API, and the
faults that they bring about."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from tests.cluster.kinds import SERVICE_ACCOUNTS, Refused
from tests.cluster.kubelets import Kubelets
from tests.cluster.operations import Operations
from tests.cluster.rbac import Access, Attempt, forbidden
from tests.cluster.store import Store
from tests.cluster.watches import Watches


@dataclass
class Fault:
    """An order.

    Args:
        verb: of the requests that it hits; ``*`` for all.
        resource: of the requests that it hits, such as ``pods`` or ``pods/log``; ``*`` for all.
        count: the number of requests that it still hits.
        code: of the answer; 0 to cut the connection without an answer.
        message: of the answer.
        retry_after_s: of the header ``Retry-After``.
    """

    verb: str = "*"
    resource: str = "*"
    count: int = 1
    code: int = 503
    message: str = "a test has ordered this"
    retry_after_s: int | None = None

    def hits(self, attempt: Attempt) -> bool:
        return (
            self.count > 0
            and self.verb in ("*", attempt.verb)
            and self.resource in ("*", attempt.resource)
        )


class Faults:
    """All orders, and the number of requests by user, verb and resource."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._orders: list[Fault] = []
        self._away_until = self._unsynced_until = 0.0

    def order(self, **words: Any) -> None:
        self._orders.append(Fault(**words))

    def clear(self) -> None:
        self._orders.clear()
        self._away_until = self._unsynced_until = 0.0

    def restart(self, away_s: float, unsynced_s: float) -> None:
        """The server is away, and then knows no Roles yet: it refuses everybody everything."""
        self._away_until = time.monotonic() + away_s
        self._unsynced_until = self._away_until + unsynced_s

    def note(self, user: str, attempt: Attempt) -> bool:
        """Counts a request. True if its connection is to be cut; raises Refused as ordered."""
        self.calls[f"{user} {attempt.verb} {attempt.resource}"] += 1
        now = time.monotonic()
        if now < self._away_until:
            return True
        if now < self._unsynced_until:
            raise forbidden(user, attempt)
        for order in self._orders:
            if order.hits(attempt):
                order.count -= 1
                if not order.code:
                    return True
                raise Refused(order.code, order.message, retry_after_s=order.retry_after_s)
        return False


class Control:
    """The words that a test may say.

    - ``compact``: all revisions so far are gone: 410 for a watch or a page from before.
    - ``watches``: ``drop`` cuts all; ``refused`` cuts new ones. The answer is the number of watches
      for each namespace.
    - ``fail``: the fields of :class:`tests.cluster.control.Fault`.
    - ``heal``: takes back all orders to fail.
    - ``restart``: the API server is away for ``away_s``, then refuses everything for ``unsynced_s``
      with 403, as it does until it knows the Roles; all its connections break.
    - ``calls``: the number of requests by user, verb and resource.
    - ``token``: of the service account ``account`` in ``namespace``.
    - ``lose-node``, ``return-node``: ``name``; a node falls silent, its processes are gone unless
      it ``runs`` on, without its kubelet.
    - ``add-node``: see :meth:`tests.cluster.kubelets.Kubelets.add`.
    """

    def __init__(
        self,
        store: Store,
        access: Access,
        watches: Watches,
        faults: Faults,
        operations: Operations,
        kubelets: Kubelets,
        cut_all: Callable[[], None],
    ) -> None:
        self._store, self._access, self._watches, self._faults = store, access, watches, faults
        self._operations, self._cut_all = operations, cut_all
        self._words: dict[str, Callable[..., Any]] = {
            "compact": self._compact, "watches": self._order_watches, "fail": faults.order,
            "heal": self._heal, "calls": lambda: dict(faults.calls), "token": self._token,
            "restart": self._restart, "add-node": kubelets.add, "lose-node": kubelets.lose,
            "return-node": kubelets.give_back,
        }  # fmt: skip

    async def answer(self, request: web.Request) -> Any:
        action = self._words.get(request.match_info["words"])
        if action is None:
            raise Refused(404, f"no such order: {request.match_info['words']}")
        return action(**json.loads(await request.text() or "{}"))

    def _compact(self) -> None:
        self._store.compact()
        self._operations.forget_pages()

    def _order_watches(self, *, drop: bool = False, refused: bool | None = None) -> dict[str, int]:
        if refused is not None:
            self._watches.refused = refused
        if drop:
            self._watches.drop()
        return self._watches.by_namespace()

    def _restart(self, away_s: float = 1.0, unsynced_s: float = 2.0) -> None:
        self._faults.restart(away_s, unsynced_s)
        self._cut_all()

    def _heal(self) -> None:
        self._faults.clear()
        self._watches.refused = False

    def _token(self, namespace: str, account: str) -> str:
        return self._access.token_of(self._store.get(SERVICE_ACCOUNTS, namespace, account))
