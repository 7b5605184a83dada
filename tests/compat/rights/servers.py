"""Asks the cases of a server by the wire: an admin at 127.0.0.1, and a client at 127.0.0.2.

Neither authenticates, so both are `User:ANONYMOUS`: ACLs tell them apart by their addresses. At the
start every resource is open. Then an ACL for each type of resource closes it to the client.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from gateway.access import CLUSTER, Operation, ResourceType
from gateway.wire.messages import decode_response, encode_request
from tests.compat.rights.all_cases import CASES
from tests.compat.rights.language import Case, Facts, Need
from tests.compat.rights.world import (
    creation_of,
    denials,
    grants,
    preparation,
    reduced,
    versions_of,
)
from tests.peers.broker import Broker
from tests.peers.gateway import Gateway
from tests.peers.kafka import FOR_TESTS, ApacheKafka
from tests.peers.processes import wait_until

ADMIN, CLIENT = "127.0.0.1", "127.0.0.2"
ANSWER_S_MAX = 60.0
SETTLED_S_MAX = 60.0
NOT_YET = (
    "coordinator_not_available",
    "coordinator_load_in_progress",
    "not_coordinator",
    "not_leader_or_follower",
)
_OPEN_FIRST = {
    **FOR_TESTS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
_OPTIONS = (
    "--authorizer",
    "standard",
    "--allow-everyone-if-no-acl-found",
    "--group-initial-rebalance-delay",
    "0s",
)

Answers = dict[str, Any]  # reduced, by case, set of rights and version


def kafka(data: Path) -> ApacheKafka:
    """Return Apache Kafka with an authorizer, not started."""
    return ApacheKafka(data, _OPEN_FIRST)


def gateway(data: Path) -> Gateway:
    """Return the embedded gateway with an authorizer, not started."""
    return Gateway(data, _OPTIONS)


class Asker:
    """Connections from one address to one server."""

    def __init__(self, broker: Broker, source: str) -> None:
        self._port = broker.port
        self._source = source

    def ask(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        """Return the decoded answer, or None if the connection ended or nothing came in time."""
        frame = encode_request(key, version, 7, "rights", fields)
        expected = (ConnectionResetError, BrokenPipeError, TimeoutError)
        with contextlib.suppress(*expected), self._connected() as to:
            to.sendall(struct.pack(">i", len(frame)) + frame)
            answer = _received(to)
            return None if answer is None else decode_response(key, version, answer).body
        return None

    def _connected(self) -> socket.socket:
        here = (self._source, 0)
        return socket.create_connection(
            ("127.0.0.1", self._port), ANSWER_S_MAX, source_address=here
        )


def _received(connection: socket.socket) -> bytes | None:
    found = b""
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4], "big"):
        chunk = connection.recv(1 << 16)
        if not chunk:
            return None
        found += chunk
    return found[4:]


def answers_of(broker: Broker, cases: Sequence[Case] = CASES) -> Answers:
    """Return the answers of a started server to all cases, with each set of rights."""
    admin, client = Asker(broker, ADMIN), Asker(broker, CLIENT)
    facts = _prepared(admin)
    _close(admin)
    names = {topic_id: name for name, topic_id in facts.ids.items()}
    found: Answers = {}
    for case in cases:
        for name, needs in grants(case):
            _grant(admin, needs)
            for version in versions_of(case):
                title = f"{case} | {name} | v{version}"
                found[title] = _settled(client, case, version, facts, names)
    return found


def _settled(client: Asker, case: Case, version: int, facts: Facts, names: dict[UUID, str]) -> Any:
    def once() -> tuple[Any] | None:
        answer = client.ask(case.key, version, case.body(facts, version))
        found = "closed" if answer is None else reduced(answer, names)
        if case.name.startswith("a-topic-to-create") and not denials(answer):
            found = "is created"  # in its own time
        return None if any(f"'{each}'" in repr(found) for each in NOT_YET) else (found,)

    return wait_until(once, f"{case} v{version}", SETTLED_S_MAX)[0]


def _prepared(admin: Asker) -> Facts:
    making, answer = preparation(), None
    try:
        while True:
            key, version, fields = making.send(answer)

            def once(
                key: int = key, version: int = version, fields: dict[str, Any] = fields
            ) -> Any:
                found = admin.ask(key, version, fields)
                late = (*NOT_YET, "unknown_topic_or_partition", "leader_not_available")
                return None if any(f"{each}:" in repr(found) for each in late) else found

            answer = wait_until(once, f"key {key}", SETTLED_S_MAX)
    except StopIteration as made:
        facts: Facts = made.value
        return facts


def _close(admin: Asker) -> None:
    """Let only the admin use all resources."""
    names = {ResourceType.CLUSTER: CLUSTER.name}
    needs = [Need(Operation.ALL, kind, names.get(kind, "*")) for kind in ResourceType]
    _create(admin, needs, ADMIN)


def _grant(admin: Asker, needs: Sequence[Need]) -> None:
    """Give the client these rights and no others."""
    admin.ask(31, 3, {"filters": [_filter(CLIENT)]})
    _wait_for(admin, CLIENT, 0)
    if needs:
        _create(admin, needs, CLIENT)


def _create(admin: Asker, needs: Sequence[Need], host: str) -> None:
    answer = admin.ask(30, 3, {"creations": [creation_of(each, host) for each in needs]})
    assert {int(row.error_code) for row in answer.results} == {0}, answer
    _wait_for(admin, host, len(set(needs)))


def _wait_for(admin: Asker, host: str, count: int) -> None:
    """Wait until the broker obeys this number of ACLs for an address."""

    def obeyed() -> bool:
        found = admin.ask(29, 3, _filter(host))
        return sum(len(each.acls) for each in found.resources) == count

    wait_until(obeyed, f"{count} ACLs for {host}", SETTLED_S_MAX)


def _filter(host: str) -> dict[str, Any]:
    return {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": host,
        "operation": 1,
        "permission_type": 1,
    }


def differences(theirs: Answers, ours: Answers) -> Iterator[str]:
    """Yield a line for each answer that differs, apart from texts that quote a request."""
    for title, wanted in theirs.items():
        if title not in ours:
            yield f"{title}: not asked"
        elif not _alike(wanted, ours[title]):
            yield f"{title}:\n   Kafka {wanted}\n   ours  {ours[title]}"


def _alike(wanted: Any, found: Any) -> bool:
    if wanted == "a refusal":
        return found == "Cluster authorization failed."
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(
            _alike(each, found[key]) for key, each in wanted.items()
        )
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_alike, wanted, found))
    return bool(wanted == found)
