"""One call to every server of a cluster at the same time, and the meaning of its failure."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

import grpc

from torch_edl.errors import EdlError, ServersLostError, UsageError
from torch_edl.wire import services
from torch_edl.wire.channel import Stub


class Pending:
    """Calls in flight to all servers; :meth:`responses` waits for them."""

    def __init__(self, futures: list[Any]) -> None:
        self._futures = futures

    def done(self) -> bool:
        """Whether every server has answered."""
        return all(f.done() for f in self._futures)

    def responses(self) -> list[Any]:
        """The answers in server order.

        Raises:
            ServersLostError: a server is unreachable, or of another incarnation.
            UsageError: a server rejected the content; the message says why.
        """
        try:
            return [f.result() for f in self._futures]
        except grpc.RpcError as error:
            raise _translate(error) from None
        except CancelledError:
            raise ServersLostError("the connection was closed") from None


class Servers:
    """Connections to the servers, in shard order.

    Args:
        addresses: ``host:port`` of each.
        timeout_s: deadline of a call, seconds.
    """

    def __init__(self, addresses: Sequence[str], *, token: str, timeout_s: float) -> None:
        # No retries: they would slow every call, and a task whose call failed is trained again.
        self._stubs = [
            Stub(services.PSERVER, address, token, retries=False) for address in addresses
        ]
        self._timeout_s = timeout_s

    def __len__(self) -> int:
        return len(self._stubs)

    def start(
        self,
        method: str,
        calls: Sequence[Any],
        *,
        wait: bool = False,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Starts one call to each server, and returns their futures.

        Args:
            wait: wait for a connection instead of failing at once without one.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return [
            stub.start(method, call, timeout_s=timeout_s, wait=wait)
            for stub, call in zip(self._stubs, calls, strict=True)
        ]

    def ask(
        self,
        method: str,
        calls: Sequence[Any],
        *,
        wait: bool = False,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Calls each server and waits for all answers; raises as :meth:`Pending.responses`."""
        return Pending(self.start(method, calls, wait=wait, timeout_s=timeout_s)).responses()

    def ask_some(self, method: str, calls: Sequence[Any | None]) -> dict[int, Any]:
        """As :meth:`ask`, but skips the servers whose call is None; returns answers by server."""
        futures = {
            server: stub.start(method, call, timeout_s=self._timeout_s)
            for server, (stub, call) in enumerate(zip(self._stubs, calls, strict=True))
            if call is not None
        }
        return dict(zip(futures, Pending([*futures.values()]).responses(), strict=True))

    def close(self) -> None:
        """Closes the connections; calls in flight fail with ServersLostError."""
        for stub in self._stubs:
            stub.close()


def _translate(error: grpc.RpcError) -> Exception:
    code, details = error.code(), error.details()
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return UsageError(details)
    if code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    ):
        return ServersLostError(f"{code.name}: {details}")
    return EdlError(f"parameter server: {code.name}: {details}")
