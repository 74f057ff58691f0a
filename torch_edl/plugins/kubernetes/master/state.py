"""A store of the master's state in a ConfigMap of the job.

The client creates the ConfigMap with the other objects of the job, so the master only needs to read
and patch this one object by its name.
"""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from torch_edl.errors import StoreConflictError
from torch_edl.interfaces import Entry, Store
from torch_edl.plugins.kubernetes.cluster.api import Api
from torch_edl.plugins.kubernetes.cluster.failures import ClusterError, InvalidError
from torch_edl.plugins.kubernetes.names import Manifest

_CONFLICT = 409
# Key of ConfigMap.data with the revisions; values are in ConfigMap.binaryData.
_REVISIONS = "revisions"
# Name of the newest revision among those of the keys.
_NEWEST = ""
_TOO_LARGE = (
    "the state must fit into a ConfigMap, which has 1 MiB; start the job with --state-claim NAME "
    "or --store URL"
)


class _Version(NamedTuple):
    """A version of the ConfigMap."""

    resource: str
    """The resourceVersion."""
    revisions: dict[str, int]
    """Revisions of the keys, and the newest revision."""


class ConfigMapStore(Store):
    """Implements :class:`~torch_edl.interfaces.Store`. Each commit is one patch of the ConfigMap.

    A patch names the resourceVersion on which it is based, so the API server rejects it if another
    writer was faster. Revisions are counted here, because a resourceVersion is unknown before the
    write. Values are compressed.

    Args:
        api: connection to the cluster; the store closes it.
        name: name of the ConfigMap.
    """

    # Long enough for an API server that restarts. A renewal makes the server write the whole
    # object, so it is rarer than in other stores.
    lock_ttl_s = 20.0
    renew_s = 5.0

    def __init__(self, api: Api, name: str) -> None:
        self._api, self._name = api, name
        self._mutex = threading.Lock()  # guards the field below
        self._known: _Version | None = None  # last version that was read or written

    def get(self, key: str) -> Entry | None:
        with self._mutex:
            found = self._read()
            revision = self._version(found).revisions.get(key)
        if revision is None:
            return None
        try:
            value = zlib.decompress(base64.b64decode(found["binaryData"][key]))
        except (KeyError, ValueError, zlib.error) as error:
            raise OSError(f"configmap {self._name}: {key} is damaged: {error}") from error
        return Entry(value, revision)

    def commit(self, puts: Mapping[str, bytes], expected: Mapping[str, int]) -> int:
        return self._write(puts, expected)

    def clear(self, expected: Mapping[str, int]) -> None:
        self._write(None, expected)

    def close(self) -> None:
        self._api.close()

    def _write(self, puts: Mapping[str, bytes] | None, expected: Mapping[str, int]) -> int:
        """Write keys, and return their revision.

        Args:
            puts: values of the keys; None removes all keys.
        """
        with self._mutex:
            fresh = self._known is None
            known = self._known or self._version(self._read())
            while True:
                found = {key: known.revisions.get(key, 0) for key in expected}
                if found == dict(expected):
                    try:
                        return self._patch(known, puts)
                    except StoreConflictError:
                        pass  # any key may have changed
                elif fresh:
                    raise StoreConflictError(f"the revisions are {found}, expected were {expected}")
                known, fresh = self._version(self._read()), True

    def _patch(self, known: _Version, puts: Mapping[str, bytes] | None) -> int:
        """Write keys if the ConfigMap still has the known version.

        Raises:
            StoreConflictError: it has another version.
        """
        newest = known.revisions.get(_NEWEST, 0) + 1
        values: dict[str, str | None]
        if puts is None:
            revisions = {_NEWEST: newest}
            values = {key: None for key in known.revisions if key != _NEWEST}
        else:
            revisions = {**known.revisions, **dict.fromkeys(puts, newest), _NEWEST: newest}
            values = {
                key: base64.b64encode(zlib.compress(value, 1)).decode()
                for key, value in puts.items()
            }
        patch: Manifest = {
            "metadata": {"resourceVersion": known.resource},
            "data": {_REVISIONS: json.dumps(revisions)},
            "binaryData": values,
        }
        try:
            self._version(self._api.patch("ConfigMap", self._name, patch))
        except InvalidError as error:
            raise OSError(f"{error}; {_TOO_LARGE}") from error
        except ClusterError as error:
            if error.status == _CONFLICT:
                raise StoreConflictError(str(error)) from error
            raise OSError(str(error)) from error
        return newest

    def _read(self) -> Manifest:
        try:
            return self._api.get("ConfigMap", self._name)
        except ClusterError as error:
            raise OSError(str(error)) from error

    def _version(self, found: Manifest) -> _Version:
        """Return the version of a ConfigMap, and remember it as the last one."""
        text = (found.get("data") or {}).get(_REVISIONS, "{}")
        self._known = _Version(found["metadata"]["resourceVersion"], json.loads(text))
        return self._known
