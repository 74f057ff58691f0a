"""A small Kubernetes cluster for tests: ``python -m tests.cluster FOLDER``.

An API server that speaks HTTPS with the unmodified official client, as the published API says; a
scheduler, the controllers, and nodes whose containers are processes of this machine. What lives
here stands in for a cluster, so nothing here imports torch-edl, and torch-edl knows nothing of it.

    store, kinds, selectors, patch   the objects and their changes
    schema, validation, defaults, admission, rbac   what is accepted
    operations, watches, pod_requests, server, discovery   the requests
    garbage, faults, control, settings   owners; what a test orders
    cluster   for the tests: starts all this, and writes the kubeconfig

The process ends when its standard input does, so it never outlives its test.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
import sys
from pathlib import Path

import trustme
import yaml
from aiohttp import web

from tests.cluster.control import Control
from tests.cluster.faults import Faults
from tests.cluster.garbage import collect_garbage
from tests.cluster.kinds import NAMESPACES, SERVICE_ACCOUNTS, Object, name_of
from tests.cluster.operations import Operations
from tests.cluster.pod_requests import PodRequests
from tests.cluster.rbac import Access
from tests.cluster.server import ApiServer
from tests.cluster.settings import Settings
from tests.cluster.store import Store
from tests.cluster.watches import Watches


class NoNodes:
    """A cluster without nodes: no pod ever has a log or a port."""

    def log_of(self, pod: Object, container: str, *, previous: bool) -> Path | None:
        return None

    async def connect(self, pod: Object, port: int) -> socket.socket:
        raise OSError("the pod is not running")


async def serve(folder: Path, listening: socket.socket) -> None:
    """Until the standard input ends."""
    Settings.read(folder / "settings.json")
    store = Store()
    admin, restricted = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
    access, watches, faults = Access(store, admin, restricted), Watches(store), Faults()
    server = ApiServer(store, access, watches, faults, PodRequests(store, NoNodes()))
    control = Control(store, access, watches, faults, server.operations)
    runner = web.AppRunner(server.app(control.answer), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, listening, ssl_context=_tls(folder)).start()
    store.create(NAMESPACES, {
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"},
    })  # fmt: skip
    controllers = asyncio.create_task(run_controllers(store, server.operations))
    _write_kubeconfig(folder, listening.getsockname()[1], admin)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([asyncio.ensure_future(ended), controllers],
                       return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
    if controllers.done():
        controllers.result()
    controllers.cancel()
    await runner.cleanup()


async def run_controllers(store: Store, operations: Operations) -> None:
    """After every change, each controller brings the objects closer to what they should be."""
    while True:
        changed = store.change()
        add_default_accounts(store)
        collect_garbage(store, operations)
        if not changed.is_set():
            await changed.wait()


def add_default_accounts(store: Store) -> None:
    """Each namespace has a service account for the pods that name none."""
    for namespace in store.list(NAMESPACES):
        name = name_of(namespace)
        if store.find(SERVICE_ACCOUNTS, name, "default") is None:
            metadata = {"name": "default", "namespace": name}
            store.create(SERVICE_ACCOUNTS, {
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata,
            })  # fmt: skip


def _tls(folder: Path) -> ssl.SSLContext:
    """Writes the certificate of the authority to ``ca.crt``."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


def _write_kubeconfig(folder: Path, port: int, token: str) -> None:
    known = {
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority": str(folder / "ca.crt"),
        }}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {
            "cluster": "test", "user": "admin", "namespace": "default",
        }}],
    }  # fmt: skip
    fresh = folder / "kubeconfig.new"
    fresh.touch(mode=0o600)
    fresh.write_text(yaml.safe_dump(known))
    fresh.rename(folder / "kubeconfig")


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), socket.create_server(("127.0.0.1", 0))))
