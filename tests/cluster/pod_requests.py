"""The requests that go through the API server to a pod: its log, its ports, its eviction."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web

from tests.cluster.budgets import check_eviction
from tests.cluster.kinds import PODS, Object, Refused, name_of
from tests.cluster.operations import Operations
from tests.cluster.store import Store, now

if TYPE_CHECKING:
    from tests.cluster.kubelets import Kubelets

_PROTOCOLS = ("v4.channel.k8s.io",)
_POLL_S = 0.05


class PodRequests:
    """Subresources of pods."""

    def __init__(self, store: Store, operations: Operations, kubelets: Kubelets) -> None:
        self._store, self._operations, self._kubelets = store, operations, kubelets

    async def serve(
        self, request: web.Request, namespace: str, name: str, sub: str
    ) -> web.StreamResponse:
        pod = self._store.get(PODS, namespace, name)
        if sub == "log":
            return await self._log(request, pod)
        if sub == "portforward":
            return await self._port_forward(request, pod)
        return await self._evict(request, pod)

    async def _log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        query = request.query
        names = [container["name"] for container in pod["spec"]["containers"]]
        name = query.get("container", names[0])
        if name not in names:
            raise Refused(400, f"container {name} is not valid for pod {name_of(pod)}")
        if len(names) > 1 and "container" not in query:
            raise Refused(400, f"a container name must be specified for pod {name_of(pod)}, "
                          f"choose one of: {names}")  # fmt: skip
        path = self._kubelets.log_of(pod, name)
        if path is None:
            raise Refused(400, f'container {name!r} in pod "{name_of(pod)}" is waiting to start: '
                          "ContainerCreating")  # fmt: skip
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await self._send_log(request, answer, pod, path)
        await answer.write_eof()
        return answer

    async def _send_log(
        self, request: web.Request, answer: web.StreamResponse, pod: Object, path: Path
    ) -> None:
        query = request.query
        follow = query.get("follow") in ("true", "True", "1")
        tail = int(query.get("tailLines", -1))
        with open(path, "rb") as log:
            lines = log.readlines()
            lines = lines if tail < 0 else lines[len(lines) - tail :]
            while True:
                for line in lines:
                    await answer.write(line)
                ended = not self._writes(pod)
                lines = log.readlines()
                if lines or not follow:
                    if not follow:
                        return
                    continue
                if ended:
                    return
                await asyncio.sleep(_POLL_S)

    def _writes(self, pod: Object) -> bool:
        """The pod may still write."""
        found = self._store.find(PODS, pod["metadata"]["namespace"], name_of(pod))
        same = found is not None and found["metadata"]["uid"] == pod["metadata"]["uid"]
        return same and found["status"]["phase"] in ("Pending", "Running")  # type: ignore[index]

    async def _port_forward(self, request: web.Request, pod: Object) -> web.StreamResponse:
        ports = [int(p) for text in request.query.getall("ports", []) for p in text.split(",")]
        # Where the kubelet does not answer, there is no websocket.
        connections = [await self._connect(pod, port) for port in ports]
        answer = web.WebSocketResponse(protocols=_PROTOCOLS)
        await answer.prepare(request)
        writers: dict[int, asyncio.StreamWriter] = {}
        readers: list[asyncio.Task[None]] = []
        try:
            for i, (port, connection) in enumerate(zip(ports, connections, strict=True)):
                for channel in (2 * i, 2 * i + 1):
                    await answer.send_bytes(bytes([channel]) + struct.pack("<H", port))
                if isinstance(connection, OSError):
                    why = f"error forwarding port {port} to pod {name_of(pod)}: {connection}"
                    await answer.send_bytes(bytes([2 * i + 1]) + why.encode())
                    continue
                reader, writers[2 * i] = await asyncio.open_connection(sock=connection)
                readers.append(asyncio.create_task(_forward(reader, answer, 2 * i)))
            async for message in answer:
                if message.type is WSMsgType.BINARY and message.data[0] in writers:
                    writers[message.data[0]].write(message.data[1:])
                    await writers[message.data[0]].drain()
        except ConnectionError:
            pass  # The pod has ended.
        finally:
            for task in readers:
                task.cancel()
            for writer in writers.values():
                writer.close()
        return answer

    async def _connect(self, pod: Object, port: int) -> socket.socket | OSError:
        try:
            return await self._kubelets.connect(pod, port)
        except OSError as error:
            return error

    async def _evict(self, request: web.Request, pod: Object) -> web.StreamResponse:
        body = await request.json()
        check_eviction(self._store, pod, self._store.list(PODS, pod["metadata"]["namespace"]))
        disrupt(self._store, pod, "EvictionByEvictionAPI", "Eviction API: evicting")
        namespace = pod["metadata"]["namespace"]
        self._operations.delete(PODS, namespace, name_of(pod), body.get("deleteOptions") or {})
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return web.json_response({**status, "code": 201}, status=201)


async def _forward(
    reader: asyncio.StreamReader, answer: web.WebSocketResponse, channel: int
) -> None:
    try:
        while data := await reader.read(65536):
            await answer.send_bytes(bytes([channel]) + data)
    except ConnectionError:
        pass  # The pod has ended.
    await answer.close()


def disrupt(store: Store, pod: Object, reason: str, message: str) -> None:
    """Notes in a pod that it is not to blame for its end."""

    def change(thing: Object) -> None:
        set_condition(thing, "DisruptionTarget", "True", reason, message)

    store.update(PODS, pod["metadata"]["namespace"], name_of(pod), change)


def set_condition(thing: Object, kind: str, value: str, reason: str, message: str) -> None:
    """Set a condition in the status of an object."""
    conditions = thing["status"].setdefault("conditions", [])
    old = next((c for c in conditions if c["type"] == kind), None)
    same = old is not None and old["status"] == value
    condition = {
        "type": kind, "status": value, "reason": reason, "message": message,
        "lastTransitionTime": old["lastTransitionTime"] if old and same else now(),
    }  # fmt: skip
    thing["status"]["conditions"] = [c for c in conditions if c["type"] != kind]
    thing["status"]["conditions"].append({k: v for k, v in condition.items() if v != ""})
