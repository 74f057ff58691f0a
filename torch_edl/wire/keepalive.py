"""Options of connections between machines, to detect a lost machine.

A machine that loses its power or its network closes no connection. Without probes, a process waits
until the kernel gives up: a quarter of an hour if data is in flight, otherwise for ever.
Connections within a machine need no probes, because the kernel closes them.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the client of a job uses gRPC alone
    import zmq

# An idle connection is probed after 5 s, and counts as lost if no answer comes for 10 s.
_IDLE_S, _ANSWER_S = 5, 10
_INTERVAL_S = 5
# Unacknowledged data ends a connection after the same time. The kernel also uses this limit instead
# of the number of unanswered probes.
_LOST_MS = 1000 * (_IDLE_S + _ANSWER_S)
# If connection and handshake take longer, gRPC resolves the address again and retries. The default
# is 20 s.
_CONNECT_MS = 5_000

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.keepalive_time_ms", 1000 * _IDLE_S),
    ("grpc.keepalive_timeout_ms", 1000 * _ANSWER_S),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
)
"""Options of a gRPC channel. gRPC sets ``TCP_USER_TIMEOUT`` accordingly."""

SERVER_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.keepalive_time_ms", 1000 * _IDLE_S),
    ("grpc.keepalive_timeout_ms", 1000 * _ANSWER_S),
    # By default, a server closes connections that send more than one ping in 5 min.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000 * _IDLE_S // 2),
)
"""Options of a gRPC server, which permit the pings of :data:`CHANNEL_OPTIONS`."""


def watch(connection: socket.socket) -> None:
    """Set the keepalive options of a TCP connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _ANSWER_S // _INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MS)


def watch_zmq(endpoint: zmq.Socket[bytes]) -> None:
    """Set the keepalive options of a ZeroMQ socket.

    The kernel sends the probes. ZeroMQ's own heartbeat counts only whole frames as a sign of life
    and would end a connection while a large frame is being sent.
    """
    endpoint.tcp_keepalive = 1
    endpoint.tcp_keepalive_idle = _IDLE_S
    endpoint.tcp_keepalive_intvl = _INTERVAL_S
    endpoint.tcp_keepalive_cnt = _ANSWER_S // _INTERVAL_S
    endpoint.tcp_maxrt = _LOST_MS
