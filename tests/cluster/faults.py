"""What tests order to go wrong with requests, and the count of the requests."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.cluster.rbac import Attempt, forbidden
from tests.cluster.refused import Refused


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

    def order(self, words: dict[str, Any]) -> None:
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
