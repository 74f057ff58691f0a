"""A small Kubernetes cluster for tests: ``python -m tests.cluster FOLDER``.

An API server that speaks HTTPS with the unmodified official client, as the published API says; a
scheduler, the controllers, and nodes whose containers are processes of this machine. What lives
here stands in for a cluster, so nothing here imports torch-edl, and torch-edl knows nothing of it.

    store, kinds, selectors   the objects and their changes
    validation, admission, rbac   what is accepted
    operations, watches, pod_requests, budgets, discovery, server   the requests
    scheduler, node_controller, job_controller   the control plane
    kubelets, pod_run, pod_files, container, linux   nodes, and pods as processes
    network, dns   addresses and names of pods
    control, times   what a test orders, and how long things take
    jobs   jobs of torch-edl in a namespace of any cluster
    drain   what kubectl does to a node
    cluster   for the tests: starts all this, and writes the kubeconfig

The process ends when its standard input does, so it never outlives its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import ssl
import sys
from pathlib import Path

import trustme
import yaml
from aiohttp import web

from tests.cluster import network
from tests.cluster.control import Control, Faults
from tests.cluster.dns import NameServer
from tests.cluster.job_controller import JobController
from tests.cluster.kinds import NAMESPACES, SERVICE_ACCOUNTS, name_of
from tests.cluster.kubelets import Kubelets, PolicyController
from tests.cluster.node_controller import NodeController
from tests.cluster.operations import Operations, collect_garbage
from tests.cluster.pod_requests import PodRequests
from tests.cluster.rbac import Access
from tests.cluster.server import ApiServer
from tests.cluster.store import Store
from tests.cluster.watches import Watches

_TICK_S = 0.1


async def serve(folder: Path, outside: socket.socket, *, own_users: bool) -> None:
    """Until the standard input ends.

    Args:
        outside: listens for the clients that are not in the cluster.
    """
    settings = json.loads((folder / "settings.json").read_text())
    store = Store()
    admin = secrets.token_urlsafe(16)
    access, watches, faults = Access(store, admin), Watches(store), Faults()
    tls, authority = _tls(folder)
    operations = Operations(store)
    kubelets = Kubelets(store, access, operations, folder, authority, own_users=own_users)
    for node in settings["nodes"]:
        kubelets.add(**node)
    server = ApiServer(
        store, operations, access, watches, faults, PodRequests(store, operations, kubelets)
    )
    control = Control(store, access, watches, faults, operations, kubelets, server.cut_all)
    runner = web.AppRunner(server.app(control.answer), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.SockSite(runner, outside, ssl_context=tls).start()
    await web.TCPSite(runner, network.API, network.API_PORT, ssl_context=tls).start()
    await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: NameServer(store), local_addr=(network.DNS, 53)
    )
    store.create(NAMESPACES, {
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"},
    })  # fmt: skip
    controllers = asyncio.create_task(
        run_controllers(
            store, operations, kubelets, enforces_policies=settings["enforces_policies"]
        )
    )
    _write_kubeconfig(folder, outside.getsockname()[1], admin)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    waiting = asyncio.ensure_future(ended.wait())
    await asyncio.wait([waiting, controllers], return_when=asyncio.FIRST_COMPLETED)
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    waiting.cancel()
    await kubelets.close()
    await runner.cleanup()
    if not controllers.cancel():
        controllers.result()


async def run_controllers(
    store: Store, operations: Operations, kubelets: Kubelets, *, enforces_policies: bool
) -> None:
    """After every change, and as time passes, each controller brings the objects closer to what
    they should be."""
    nodes = NodeController(store, operations, kubelets)
    policies = PolicyController(store, kubelets)
    jobs = JobController(store, operations)
    while True:
        changed = store.change()
        add_default_accounts(store)
        collect_garbage(store, operations)
        jobs.reconcile()
        nodes.watch_nodes()
        nodes.place_pods()
        kubelets.reconcile()
        if enforces_policies:
            policies.reconcile()
        if not changed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), _TICK_S)
        else:
            await asyncio.sleep(0)


def add_default_accounts(store: Store) -> None:
    """Each namespace has a service account for the pods that name none."""
    for namespace in store.list(NAMESPACES):
        name = name_of(namespace)
        if store.find(SERVICE_ACCOUNTS, name, "default") is None:
            metadata = {"name": "default", "namespace": name}
            store.create(SERVICE_ACCOUNTS, {
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata,
            })  # fmt: skip


def _tls(folder: Path) -> tuple[ssl.SSLContext, str]:
    """For the server, and the certificate of its authority, which is also in ``ca.crt``."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    names = ("127.0.0.1", "localhost", network.API, "kubernetes.default.svc")
    authority.issue_cert(*names).configure_cert(context)
    return context, authority.cert_pem.bytes().decode()


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
    # Before there are threads; the socket stays in the network of the machine.
    listening = socket.create_server(("127.0.0.1", 0))
    alone = network.enter_cluster()
    asyncio.run(serve(Path(sys.argv[1]), listening, own_users=alone))
