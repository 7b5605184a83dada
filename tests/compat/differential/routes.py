"""Chooses the server of a request: the only one, or in a cluster the leader or coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

from gateway.wire.messages import decode_response, encode_request
from tests.compat.differential.connection import Address, Connection

METADATA, FIND_COORDINATOR = 3, 10
GROUP, TRANSACTION = 0, 1
_TOPICS = {0: "topic_data", 1: "topics", 2: "topics", 21: "topics", 23: "topics", 61: "topics"}
_PARTITIONS = ("partition_data", "partitions", "partition_indexes")
_INDEXES = ("partition", "partition_index", "index")
_GROUPS = {8, 9, 11, 12, 13, 14, 15, 28, 42, 47, 68, 69}
_TRANSACTIONS = {22, 24, 25, 26, 65}
CONFIGS = {32, 33, 44}
_OF_BROKERS = {4, 8}  # types of config resources: brokers, and their loggers


class Routes(Protocol):
    """Chooses the server of a request."""

    def address(self, key: int, body: Any) -> Address:
        """Return the server for a request with these fields, or with bytes in their place."""
        ...


class OneServer:
    """The only server, for every request."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def address(self, key: int, body: Any) -> Address:
        return self._address


class Cluster:
    """The brokers of a cluster. Leaders and coordinators are looked up for each request."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.first = addresses[0]

    def address(self, key: int, body: Any) -> Address:
        """Return the broker that should answer, or the first one if any of them may."""
        if isinstance(body, bytes):
            return self.first
        if key in _TOPICS and body.get(_TOPICS[key]):
            return self.leader(body[_TOPICS[key]][0]) or self.first
        if key in CONFIGS:
            return self.broker(body.get("resources") or ()) or self.first
        if key in _GROUPS:
            return self._coordinator(GROUP, _group(body)) or self.first
        if key in _TRANSACTIONS and _transaction(body) is not None:
            return self._coordinator(TRANSACTION, _transaction(body)) or self.first
        return self.first

    def leader(self, row: dict[str, Any]) -> Address | None:
        """Return the leader of the first partition in the row of a topic, or None."""
        rows = next((row[name] for name in _PARTITIONS if row.get(name)), [0])
        index = rows[0]
        if isinstance(index, dict):
            index = next((index[name] for name in _INDEXES if name in index), 0)
        topic_id = row.get("topic_id")
        asked: dict[str, Any] = {"name": row.get("name") or row.get("topic") or None}
        if isinstance(topic_id, UUID):
            asked = {"name": None, "topic_id": topic_id}
        fields = {"topics": [asked], "allow_auto_topic_creation": False}
        nodes, topics = self._metadata(fields)
        for topic in topics:
            for partition in topic.partitions:
                if partition.partition_index == index:
                    return nodes.get(partition.leader_id)
        return None

    def broker(self, resources: Sequence[dict[str, Any]]) -> Address | None:
        """Return the first broker that a row of these config resources names, or None.

        That is the first one of all for a row about all brokers: another one may learn of a
        change later.
        """
        named = {
            each["resource_name"] for each in resources if each["resource_type"] in _OF_BROKERS
        }
        if not named:
            return None
        nodes, _ = self._metadata({"topics": [], "allow_auto_topic_creation": False})
        known = [node for node in sorted(nodes) if str(node) in named or "" in named]
        return nodes[known[0]] if known else None

    def _metadata(self, fields: dict[str, Any]) -> tuple[dict[int, Address], Sequence[Any]]:
        """Return the addresses of the brokers by their ids, and the topics."""
        answer = self._ask(METADATA, 12, fields)
        nodes = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        return nodes, answer.topics

    def _coordinator(self, key_type: int, name: str | None) -> Address | None:
        fields = {"key_type": key_type, "coordinator_keys": [name or ""]}
        [found] = self._ask(FIND_COORDINATOR, 4, fields).coordinators
        return (found.host, found.port) if found.node_id >= 0 else None

    def _ask(self, key: int, version: int, fields: dict[str, Any]) -> Any:
        connection = Connection(self.first)
        try:
            connection.send(encode_request(key, version, 1, "routes", fields))
            answer = connection.receive()
            assert answer is not None, f"no route: key {key}"
            return decode_response(key, version, answer).body
        finally:
            connection.close()


def _group(body: dict[str, Any]) -> str:
    """Return the first group that a request names."""
    if "group_id" in body:
        return body["group_id"]
    named = body.get("groups") or body.get("groups_names") or body.get("group_ids") or [""]
    return named[0]["group_id"] if isinstance(named[0], dict) else named[0]


def _transaction(body: dict[str, Any]) -> str | None:
    """Return the first transactional id that a request names, or None."""
    for name in ("transactional_id", "v3_and_below_transactional_id"):
        if name in body:
            return body[name]
    if body.get("transactions"):
        return body["transactions"][0]["transactional_id"]
    return next(iter(body.get("transactional_ids") or ()), None)
