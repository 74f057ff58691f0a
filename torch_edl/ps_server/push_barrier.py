"""Concurrency of changes: pushes run in parallel, a cut runs alone, and a hold stops all pushes
except those that its cut names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch_edl.errors import EdlError, StaleIncarnationError
from torch_edl.tables.watermarks import Watermarks
from torch_edl.wire.data_plane.server import WouldWaitError


class HoldEndedError(EdlError, TimeoutError):
    """The hold timed out, or was released, before the snapshot was cut."""


class PushBarrier:
    """A barrier that pushes pass unless :meth:`hold` has closed it. The hold ends when a snapshot
    is cut, when it is released, or on a timeout: the death of a master must not stop training."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._inside = 0
        self._deadline: float | None = None  # end of the hold; None: no hold
        self._holds = 0  # number of holds so far, which identifies the current one
        self._since = 0.0
        self._targets: Watermarks | None = None
        self._alone = False
        self._closed = False
        self._move = 0  # the newest move of the model
        self._sealed = False

    def enter(self, task_id: int | None = None, last: int = 0, *, may_wait: bool = True) -> None:
        """Begin a push of the records of a task up to ``last``, or, without a task, another change.
        Waits while a hold stops it. The caller calls :meth:`leave` at the end.

        Raises:
            WouldWaitError: it would have to wait, and ``may_wait`` is False.
        """

        def named() -> bool:
            if task_id is None or self._targets is None:
                return False
            return last <= self._targets.offset(task_id)

        with self._lock:
            while not self._shut and (self._alone or (self._held() and not named())):
                if not may_wait:
                    raise WouldWaitError
                until_notified = self._alone or self._deadline is None
                self._condition.wait(None if until_notified else self._left())
            if self._closed:
                raise StaleIncarnationError("this server stops; ask the master for the servers")
            if self._sealed:
                raise StaleIncarnationError(
                    "the model moves to other servers; ask the master for them"
                )
            self._inside += 1

    def leave(self) -> None:
        """End a push or another change that :meth:`enter` has begun."""
        with self._lock:
            self._inside -= 1
            if self._alone or self._deadline is not None:
                self._condition.notify_all()

    @contextmanager
    def passing(self, task_id: int | None = None, last: int = 0) -> Iterator[None]:
        """Surround a push or another change, see :meth:`enter`."""
        self.enter(task_id, last)
        try:
            yield
        finally:
            self.leave()

    def close(self) -> None:
        """Reject all pushes, including waiting ones: the process ends."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    @property
    def _shut(self) -> bool:
        return self._closed or self._sealed

    def _left(self) -> float:
        assert self._deadline is not None
        return max(0.0, self._deadline - self._clock())

    def _held(self) -> bool:
        if self._deadline is not None and self._clock() >= self._deadline:
            self._end()
        return self._deadline is not None

    def _end(self) -> None:
        self._deadline = self._targets = None
        self._condition.notify_all()

    def is_held(self) -> bool:
        """Return whether a hold is in force."""
        with self._condition:
            return self._held()

    def hold(self, timeout_s: float, *, move: int = 0) -> None:
        """Stop new pushes, and wait until none is inside. A hold in force is restarted.

        Args:
            move: number of a move of the model that begins, above those of earlier moves. The seal
                of an earlier move is removed.

        Raises:
            HoldEndedError: the hold timed out or was released before all pushes had ended, or a
                later move has begun.
        """
        with self._condition:
            if 0 < move < self._move:
                raise HoldEndedError(_replaced(move, self._move))
            if move > self._move:
                self._move, self._sealed = move, False
            self._since = self._clock()
            self._deadline = self._since + timeout_s
            self._targets = None
            self._holds += 1
            mine = self._holds
            while self._inside:
                self._require_held(mine)
                self._condition.wait(self._left())
            self._require_held(mine)

    def release(self, *, move: int = 0) -> None:
        """End the hold, and remove the seal of a move that failed. A move before the newest one has
        neither."""
        with self._condition:
            if 0 < move < self._move:
                return
            if move and move == self._move:
                self._sealed = False
            self._end()

    @contextmanager
    def cut(
        self, targets: Watermarks, reached: Callable[[], bool], *, move: int = 0
    ) -> Iterator[Callable[[], float]]:
        """Admit the pushes up to ``targets`` until ``reached()``; then run the body alone and end
        the hold.

        Args:
            move: number of a move, see :meth:`hold`: no push passes after the body. 0 for none.

        Yields:
            A function that returns the seconds since the hold began.

        Raises:
            HoldEndedError: no hold is in force, or it timed out.
        """
        with self._condition:
            mine = self._holds
            self._require_held(mine)
            if move and move != self._move:
                raise HoldEndedError(_replaced(move, self._move))
            self._targets = targets
            self._condition.notify_all()
            while not reached():
                self._require_held(mine)
                self._condition.wait(self._left())
            # After a timeout, pushes beyond the targets may have passed.
            self._require_held(mine)
            self._alone = True
            while self._inside:
                self._condition.wait()
        try:
            yield lambda: self._clock() - self._since
            with self._condition:
                self._sealed = self._sealed or 0 < move == self._move
        finally:
            with self._condition:
                self._alone = False
                if mine == self._holds:
                    self._end()
                self._condition.notify_all()

    def _require_held(self, hold: int) -> None:
        if not self._held() or hold != self._holds:
            raise HoldEndedError(
                "no hold is in force: it timed out or was released; the master tries again"
            )


def _replaced(move: int, newest: int) -> str:
    return f"move {move} of the model: move {newest} has replaced it"
