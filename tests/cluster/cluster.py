"""A cluster for tests: the process of the server, its kubeconfig, and orders to the cluster."""

from __future__ import annotations

import itertools
import json
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from kubernetes import client, config

from tests.waiting import HANG_S

ROOT = Path(__file__).parents[2]


class Cluster:
    """A process that is an API server with its scheduler, controllers and nodes.

    Args:
        folder: for the kubeconfig, and for the folders and logs of the pods.
        nodes: for each node its allocatable resources, such as ``{"cpu": "4"}``, its ``name``,
            and ``labels`` if it has any.
        enforces_policies: network policies have an effect; needs the command nft.
    """

    def __init__(
        self, folder: Path, *, nodes: list[dict[str, Any]], enforces_policies: bool = False
    ) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._namespaces = itertools.count(1)
        settings = {"nodes": nodes, "enforces_policies": enforces_policies}
        (folder / "settings.json").write_text(json.dumps(settings))
        with open(folder / "cluster.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster", str(folder)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not self.kubeconfig.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                pytest.fail(f"the cluster did not start:\n{self.report()}")
            time.sleep(0.02)
        self._known = yaml.safe_load(self.kubeconfig.read_text())

    def api_client(self, token: str = "") -> client.ApiClient:
        """A client of the administrator, or of the user with the token."""
        known: client.ApiClient = config.new_client_from_config(str(self.kubeconfig))
        if token:
            known.configuration.api_key = {"authorization": f"Bearer {token}"}
            known.configuration.refresh_api_key_hook = None
        return known

    def make_namespace(self) -> str:
        """A new one."""
        name = f"test-{next(self._namespaces)}"
        core = client.CoreV1Api(self.api_client())
        core.create_namespace({"metadata": {"name": name}})
        while not core.list_namespaced_service_account(name).items:
            time.sleep(0.02)
        return name

    def request(self, method: str, path: str, body: Any) -> Any:
        """A request of the administrator without the official client, which would not send all;
        raises ``HTTPError``."""
        server = self._known["clusters"][0]["cluster"]
        token = self._known["users"][0]["user"]["token"]
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(
            server["server"] + path, json.dumps(body).encode(), headers, method=method
        )
        context = ssl.create_default_context(cafile=server["certificate-authority"])
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=HANG_S) as answer:
            return json.load(answer)

    def control(self, word: str, **values: Any) -> Any:
        """An order to the cluster itself, see :mod:`tests.cluster.control`."""
        return self.request("POST", f"/control/{word}", values)

    def heal(self) -> None:
        """Takes back all orders that something fails."""
        self.control("heal")

    def calls(self, key: str = "") -> int:
        """The number of requests so far; of a user, verb and resource if these are named."""
        counted: dict[str, int] = self.control("calls")
        return counted.get(key, 0) if key else sum(counted.values())

    def token_of(self, namespace: str, account: str) -> str:
        """The token of a service account."""
        token: str = self.control("token", namespace=namespace, account=account)
        return token

    def grant(self, namespace: str, account: str, rules: list[dict[str, Any]]) -> None:
        """Lets a service account do what the rules of a Role say, which is named like it."""
        rbac = client.RbacAuthorizationV1Api(self.api_client())
        metadata = {"metadata": {"name": account}}
        rbac.create_namespaced_role(namespace, {**metadata, "rules": rules})
        rbac.create_namespaced_role_binding(namespace, {
            **metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        })  # fmt: skip

    def report(self) -> str:
        """The logs, for a test that fails."""
        logs = [self.folder / "cluster.log", *sorted((self.folder / "logs").glob("*"))]
        return "\n".join(f"==== {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    def close(self) -> None:
        """Everything ends: the pods are bound to the process of the cluster."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
