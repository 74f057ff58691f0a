"""What a container finds of its pod: its volumes as folders, its environment, and its log."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from pathlib import Path

from tests.cluster.container import Mount
from tests.cluster.kinds import CLAIMS, CONFIG_MAPS, SECRETS, Kind, Object, name_of, namespace_of
from tests.cluster.network import API, API_PORT
from tests.cluster.store import Store

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_LABEL = re.compile(r"metadata\.labels\['([^']+)'\]")


class Missing(Exception):
    """Something that the pod names is not there (yet)."""


class PodFiles:
    """The folders of one pod.

    Args:
        folder: of the pod.
        claims: where the folders of claims are, of all pods.
        token: of the service account.
        authority: the certificate of the API server's authority.
    """

    def __init__(
        self, store: Store, pod: Object, folder: Path, claims: Path, token: str, authority: str
    ) -> None:
        self._store, self._pod, self._folder, self._claims = store, pod, folder, claims
        self._token, self._authority = token, authority
        self._spec = pod["spec"]
        self._group = (self._spec.get("securityContext") or {}).get("fsGroup")

    def prepare(self) -> None:
        """Makes the volumes; raises Missing."""
        for volume in self._spec.get("volumes") or []:
            try:
                self._source(volume)
            except Missing as missing:
                text = f'MountVolume.SetUp failed for volume "{volume["name"]}" : {missing}'
                raise Missing(text) from missing

    def mounts(self, container: Object) -> list[Mount]:
        """Those of a container, outer ones first."""
        volumes = {volume["name"]: volume for volume in self._spec.get("volumes") or []}
        found = []
        for mount in container.get("volumeMounts") or []:
            volume = volumes[mount["name"]]
            read_only = bool(mount.get("readOnly") or volume.get("configMap"))
            found.append(Mount(str(self._source(volume)), mount["mountPath"], read_only))
        if self._token:
            folder = self._folder / "service-account"
            folder.mkdir(exist_ok=True)
            texts = {"token": self._token, "ca.crt": self._authority,
                     "namespace": namespace_of(self._pod)}  # fmt: skip
            for name, text in texts.items():
                (folder / name).write_text(text)
            found.append(Mount(str(folder), SERVICE_ACCOUNT, read_only=True))
        return sorted(found, key=lambda mount: mount.target.count("/"))

    def _source(self, volume: Object) -> Path:
        folder: Path = self._folder / "volumes" / volume["name"]
        if part := volume.get("configMap"):
            self._write_files(part, self._data(CONFIG_MAPS, part["name"]), folder)
        elif part := volume.get("secret"):
            self._write_files(part, self._data(SECRETS, part["secretName"]), folder)
        elif part := volume.get("persistentVolumeClaim"):
            name = part["claimName"]
            if self._store.find(CLAIMS, namespace_of(self._pod), name) is None:
                raise Missing(f'persistentvolumeclaim "{name}" not found')
            folder = self._claims / namespace_of(self._pod) / name
            self._make(folder)
        elif "emptyDir" in volume:
            self._make(folder)
        else:
            raise Missing(f"volumes of this kind are unknown here: {sorted(volume)}")
        return folder

    def _make(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(parents=True)
            self._share(folder)

    def _share(self, folder: Path) -> None:
        """Give the folder to ``fsGroup`` as the kubelet does; without one all users may write."""
        if self._group is not None and os.getuid() == 0:
            try:
                os.chown(folder, -1, self._group)
            except OSError:  # A user namespace has no other groups.
                folder.chmod(0o777)
            else:
                folder.chmod(0o2775)
        else:
            folder.chmod(0o777)

    def _write_files(self, part: Object, contents: dict[str, bytes], folder: Path) -> None:
        self._make(folder)
        items = part.get("items") or [{"key": key, "path": key} for key in contents]
        for item in items:
            if item["key"] not in contents:
                raise Missing(f"configmap references non-existent config key: {item['key']}")
            path = folder / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[item["key"]])
            path.chmod(0o644)

    def environment(self, container: Object, image_env: dict[str, str], address: str) -> (
        dict[str, str]
    ):  # fmt: skip
        """All variables of a container; raises Missing."""
        env = {
            **image_env,
            "KUBERNETES_SERVICE_HOST": API, "KUBERNETES_SERVICE_PORT": str(API_PORT),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(API_PORT), "HOSTNAME": name_of(self._pod),
        }  # fmt: skip
        for variable in container.get("env") or []:
            source = variable.get("valueFrom")
            value = self._value(source, address) if source else variable.get("value", "")
            assert "$(" not in value, f"not known here: {value}"
            env[variable["name"]] = value
        return env

    def _data(self, kind: Kind, name: str) -> dict[str, bytes]:
        found = self._store.find(kind, namespace_of(self._pod), name)
        if found is None:
            raise Missing(f'{kind.plural[:-1]} "{name}" not found')
        return read_data(found)

    def _value(self, source: Object, address: str) -> str:
        if part := source.get("secretKeyRef"):
            found = self._data(SECRETS, part["name"])
            if part["key"] not in found:
                raise Missing(f"couldn't find key {part['key']} in Secret "
                              f"{namespace_of(self._pod)}/{part['name']}")  # fmt: skip
            return found[part["key"]].decode()
        path = source["fieldRef"]["fieldPath"]
        if label := _LABEL.fullmatch(path):
            return str((self._pod["metadata"].get("labels") or {}).get(label[1], ""))
        values = {
            "metadata.name": name_of(self._pod), "metadata.namespace": namespace_of(self._pod),
            "status.podIP": address,
        }  # fmt: skip
        assert path in values, f"not known here: {path}"
        return values[path]


def read_data(thing: Object) -> dict[str, bytes]:
    """The contents of a ConfigMap or Secret."""
    data, binary = thing.get("data") or {}, thing.get("binaryData") or {}
    if thing["kind"] == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    return {
        **{key: value.encode() for key, value in data.items()},
        **{key: base64.b64decode(value) for key, value in binary.items()},
    }


_LAST_LINES, _LAST_BYTES = 80, 2048


async def copy_log(output: asyncio.StreamReader | None, path: Path) -> None:
    """Until every process of the container has ended."""
    assert output is not None
    with open(path, "ab", buffering=0) as log:
        while True:
            try:
                line = await output.readuntil(b"\n")
            except asyncio.IncompleteReadError as error:
                line = error.partial and error.partial + b"\n"
            except asyncio.LimitOverrunError as error:
                line = await output.read(error.consumed) + b"\n"
            if not line:
                return
            log.write(line)


def last_lines(log: Path) -> str:
    """Return the lines that the status of a failed container has."""
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * _LAST_BYTES))
        lines = file.read().splitlines(keepends=True)[-_LAST_LINES:]
    return b"".join(lines)[-_LAST_BYTES:].decode(errors="replace")
