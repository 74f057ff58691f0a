"""Preemption notices that an HTTP endpoint gives, such as the metadata service of a cloud.

Known services: EC2 answers 404 until the notice, and may require a session token. Google Compute
Engine always answers 200, with the text ``FALSE`` until the notice. Azure always answers 200, with
a list of scheduled events.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

_CALL_S = 5.0
_MOST_BYTES = 1 << 16
# Each cloud's metadata service rejects requests without the header of that cloud.
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
_TOKEN_PATH = "/latest/api/token"
_TOKEN_HEADER = "X-aws-ec2-metadata-token"
_TOKEN_LIFE = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
_NONE = (b"false", b"none")
_LEAVING = ("Preempt", "Terminate")


class EndpointNotice:
    """Implements :class:`~torch_edl.processes.preemption.Notice` for an ``http`` or ``https`` URL.

    A response with status 200 is a notice, unless its body says that there is none. Redirects and
    proxies are not followed, because a metadata service is local to its machine.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._token: dict[str, str] = {}
        self._open = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), _NoRedirects()
        ).open

    def look(self) -> str:
        status, body = self._get()
        if status == http.client.UNAUTHORIZED:
            self._token = self._new_token()
            status, body = self._get()
        tells = status == http.client.OK and is_notice(body)
        return f"{self._url} answers {status}" if tells else ""

    def _get(self) -> tuple[int, bytes]:
        return self._call("GET", self._url, {**_HEADERS, **self._token})

    def _new_token(self) -> dict[str, str]:
        url = urllib.parse.urljoin(self._url, _TOKEN_PATH)
        status, body = self._call("PUT", url, _TOKEN_LIFE)
        if status != http.client.OK or not body.isascii():
            return {}
        return {_TOKEN_HEADER: body.decode().strip()}

    def _call(self, method: str, url: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return the status and the first bytes of an answer.

        Raises:
            OSError: no answer.
        """
        try:
            request = urllib.request.Request(url, method=method, headers=dict(headers))
            with self._open(request, timeout=_CALL_S) as answer:
                return answer.status, answer.read(_MOST_BYTES)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code, b""
        except (http.client.HTTPException, ValueError) as error:  # ValueError: URL or header
            raise OSError(f"{url}: no HTTP: {error!r}") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def is_notice(body: bytes) -> bool:
    """Return False if the body of a response with status 200 says that there is no notice."""
    if body.strip().lower() in _NONE:
        return False
    try:
        told = json.loads(body)
        if isinstance(told, dict) and isinstance(told.get("Events"), list):
            return any(event["EventType"] in _LEAVING for event in told["Events"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # the content of a notice does not matter
    return True
