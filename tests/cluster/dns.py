"""The name server of the cluster: names of services."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import dns.flags
import dns.message
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from tests.cluster.kinds import PODS, SERVICES, Object, namespace_of
from tests.cluster.network import API
from tests.cluster.store import Store
from tests.cluster.times import FACTOR, NAME_TTL_S

DOMAIN = "cluster.local"


class NameServer(asyncio.DatagramProtocol):
    """Answers from the Services and Pods that exist.

    Like CoreDNS, it repeats an answer for a while, also that there is no such name.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._answers: dict[str, tuple[float, list[str] | None]] = {}

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        try:
            query = dns.message.from_wire(data)
        except dns.exception.DNSException:
            return
        answer = dns.message.make_response(query, recursion_available=True)
        question = query.question[0]
        found = self._cached(question.name.to_text(omit_final_dot=True).lower())
        if found is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif found and question.rdtype == dns.rdatatype.A:
            answer.answer.append(
                dns.rrset.from_text_list(
                    question.name, NAME_TTL_S, dns.rdataclass.IN, dns.rdatatype.A, found
                )
            )
        answer.flags |= dns.flags.AA
        self._transport.sendto(answer.to_wire(), address)

    def _cached(self, name: str) -> list[str] | None:
        now = time.monotonic()
        until, found = self._answers.get(name, (now, None))
        if until <= now:
            found = self.addresses(name)
            self._answers[name] = now + NAME_TTL_S * FACTOR, found
        return found

    def addresses(self, name: str) -> list[str] | None:
        """None if there is no such name."""
        words = name.removesuffix(f".svc.{DOMAIN}").split(".")
        if not name.endswith(f".svc.{DOMAIN}") or len(words) != 2:
            return None
        if words == ["kubernetes", "default"]:
            return [API]
        service = self._store.find(SERVICES, words[1], words[0])
        if service is None:
            return None
        return [pod["status"]["podIP"] for pod in endpoints(self._store, service)]


def endpoints(store: Store, service: Object) -> list[Object]:
    """The pods behind a Service."""
    spec = service["spec"]
    selector: Mapping[str, str] = spec.get("selector") or {}
    unready = spec.get("publishNotReadyAddresses")
    return [
        pod for pod in store.list(PODS, namespace_of(service))
        if selector and selector.items() <= (pod["metadata"].get("labels") or {}).items()
        and pod["status"].get("podIP") and pod["status"]["phase"] not in ("Succeeded", "Failed")
        and (unready or is_ready(pod))
    ]  # fmt: skip


def is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or []
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
