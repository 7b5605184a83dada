"""Turns a decoded answer into plain data in which only what may differ is replaced by a symbol.

Ids, node ids and leader epochs become numbered symbols, in the order of their appearance in the
case. So two servers are equal if the same ids appear at the same places. Hosts, ports and recent
times become one symbol. Everything else stays, and the first leader epoch, 0, stays as well.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from gateway.handlers import table
from gateway.wire.schema import FieldShape, shape_of
from tests.compat.differential.batch_fields import batches_in
from tests.compat.differential.symbols import Symbols, epoch_symbol, time_symbol

NODES = {
    "node_id",
    "leader_id",
    "controller_id",
    "broker_id",
    "replica_nodes",
    "isr_nodes",
    "offline_replicas",
    "preferred_read_replica",
    "eligible_leader_replicas",
    "last_known_elr",
    "replicas",
    "adding_replicas",
    "removing_replicas",
    "replica_id",
    "coordinator_id",
}
OF_NODES = {"brokers", "nodes", "current_voters", "node_endpoints"}
"""Arrays with one row for each broker."""
PRODUCERS = {"producer_id", "ongoing_txn_producer_id"}
EPOCHS = {"leader_epoch", "current_leader_epoch", "coordinator_epoch"}
MEMBERS = {"member_id", "leader"}
TIMES = {
    "last_fetch_timestamp",
    "last_timestamp",
    "last_caught_up_timestamp",
    "timestamp",
    "log_append_time",
    "start_timestamp",
    "transaction_start_time",
}
PLACES = {
    "host": "<host>",
    "port": "<port>",
    "cluster_id": "<cluster>",
    "log_dir": "<directory>",
    "total_bytes": "<bytes>",
    "usable_bytes": "<bytes>",
    "finalized_features_epoch": "<epoch>",
}

UNORDERED = {
    (0, "partition_responses"): "Kafka answers in the order of a hash map",
    (2, "partitions"): "Kafka answers in the order of a hash map",
    (3, "topics"): "Kafka answers in the order of a hash map",
    (3, "brokers"): "Kafka answers in the order of a hash map",
    (8, "partitions"): "Kafka answers refused partitions first",
    (9, "topics"): "Kafka answers in the order of a hash map",
    (9, "partitions"): "Kafka answers in the order of a hash map",
    (15, "groups"): "Kafka answers unknown groups first",
    (16, "groups"): "Kafka answers in the order of its partitions",
    (18, "api_keys"): "the order has no meaning",
    (19, "topics"): "Kafka answers in the order of a hash map",
    (24, "results_by_topic_v3_and_below"): "Kafka answers in the order of a hash map",
    (24, "topic_results"): "Kafka answers in the order of a hash map",
    (24, "results_by_partition"): "Kafka answers in the order of a hash map",
    (24, "results_by_transaction"): "Kafka answers in the order of a hash map",
    (18, "supported_features"): "Kafka answers in the order of a hash map",
    (18, "finalized_features"): "Kafka answers in the order of a hash map",
    (20, "responses"): "Kafka shuffles the topics",
    (21, "partitions"): "Kafka answers in the order of a hash map",
    (32, "configs"): "Kafka answers in the order of a hash map",
    (47, "partitions"): "Kafka answers refused partitions first",
    (34, "partitions"): "Kafka answers in the order of a hash map",
    (34, "results"): "Kafka answers in the order of a hash map",
    (35, "partitions"): "Kafka answers in the order of a hash map",
    (35, "topics"): "Kafka answers in the order of a hash map",
    (48, "entries"): "Kafka answers in the order of a hash map",
    (48, "values"): "Kafka answers in the order of a hash map",
    (49, "entries"): "Kafka answers in the order of a hash map",
    (50, "credential_infos"): "Kafka answers in the order of a hash map",
    (50, "results"): "Kafka answers in the order of a hash map",
    (51, "results"): "Kafka answers in the order of a hash map",
    (60, "brokers"): "Kafka answers in the order of a hash map",
    (27, "markers"): "Kafka answers in the order of a hash map",
    (27, "topics"): "Kafka answers in the order of a hash map",
    (27, "partitions"): "Kafka answers in the order of a hash map",
    (61, "partitions"): "Kafka answers in the order of a hash map",
    (61, "active_producers"): "Kafka answers in the order of a hash map",
    (65, "topics"): "Kafka answers in the order of a hash map",
    (65, "partitions"): "Kafka answers in the order of a hash map",
    (66, "transaction_states"): "Kafka answers in the order of its partitions",
    (66, "unknown_state_filters"): "Kafka answers in the order of a hash set",
    (68, "partitions"): "Kafka answers in the order of a hash set",
    (69, "groups"): "Kafka answers in the order of its partitions",
    (69, "topic_partitions"): "Kafka answers in the order of a hash map",
    (69, "partitions"): "Kafka answers in the order of a hash set",
    (74, "config_resources"): "Kafka answers in the order of a hash map",
    (75, "topics"): "Kafka answers a request that fails in another order",
}
"""Arrays whose order no client can rely on, by API key and field, with the reason."""
_SERVED = (18, "api_keys")  # compared for the APIs that the gateway serves
_OWN_ID = re.compile(r"[\w-]{22}")  # of a member, made by the server
BY_SYMBOL = {
    (11, "members"): "member_id",
    (15, "members"): "member_id",
    (68, "topic_partitions"): "topic_id",
    (69, "members"): "member_id",
    (61, "active_producers"): "producer_id",
}
"""Arrays in the order of a hash map of these ids, which are compared in that of their symbols."""
ROW_NAMES = (
    "user",
    "topic_name",
    "name",
    "topic",
    "group_id",
    "key",
    "resource_name",
    "transactional_id",
)
_IDENTITY = (
    *ROW_NAMES,
    "entity",
    "mechanism",
    "resource_type",
    "topic_id",
    "api_key",
    "partition_index",
    "index",
    "node_id",
    "broker_id",
)


class Normaliser:
    """Normalises the answers of one server in one case, in their order.

    With `one_node` all brokers of a cluster count as one, so that it compares with a single server.
    """

    def __init__(self, *, one_node: bool = False) -> None:
        self._one_node = one_node
        self.symbols = Symbols(one_node=one_node)

    def tree(self, key: int, entity: Any, own: str = "") -> Any:
        """Return plain data: dictionaries, lists, texts, numbers, None."""
        return {
            shape.name: self._field(key, shape, getattr(entity, shape.name), own)
            for shape in _shapes(entity)
        }

    def _field(self, key: int, shape: FieldShape, value: Any, own: str) -> Any:
        if not shape.array or value is None:
            return self._value(key, shape, value, own)
        rows = list(value)
        if own and shape.struct is not None:
            rows = [row for row in rows if (name := name_of(row)) is None or name.startswith(own)]
        if (key, shape.name) == _SERVED:
            rows = [row for row in rows if row.api_key in table.rows()]
        if (key, shape.name) in UNORDERED:
            rows.sort(key=_identity)
        normal = [self._value(key, shape, row, own) for row in rows]
        if (key, shape.name) in BY_SYMBOL:
            normal.sort(key=lambda row: str(row[BY_SYMBOL[key, shape.name]]))
        if self._one_node and (shape.name in NODES or shape.name in OF_NODES):
            normal = [row for at, row in enumerate(normal) if row not in normal[:at]]
        return normal

    def _value(self, key: int, shape: FieldShape, value: Any, own: str) -> Any:
        if value is None:
            return None
        if shape.struct is not None:
            return self.tree(key, value, own)
        if shape.kind == "records":
            return batches_in(value, self.symbols)
        return self._scalar(shape.name, value)

    def _scalar(self, name: str, value: Any) -> Any:
        """Return one value that is neither a struct nor an array."""
        value = _plain(value)
        for names, normal in _BY_NAME:
            if name in names:
                return normal(self.symbols, value)
        if name in PLACES:
            return PLACES[name] if value not in ("", -1) else value
        if isinstance(value, uuid.UUID):
            return self.symbols.of("id", value)
        if isinstance(value, str):
            if name == "resource_name":
                value = self.symbols.named_node(value)
            return self.symbols.in_text(value)
        return value


def _shapes(entity: Any) -> list[FieldShape]:
    shape = shape_of(type(entity))
    return [*shape.fields, *shape.tagged]


def _plain(value: Any) -> Any:
    """Return kio's types of values as numbers, texts and UUIDs."""
    if isinstance(value, ErrorCode):
        return value.name
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, bytes):
        return value.hex()
    return value


def _id(kind: str) -> Callable[[Symbols, Any], Any]:
    def normal(symbols: Symbols, value: Any) -> Any:
        return symbols.of(kind, int(value)) if value >= 0 else int(value)

    return normal


def _member(symbols: Symbols, value: str) -> str:
    return symbols.of("member", value) if _OWN_ID.fullmatch(value) else symbols.in_text(value)


def _session(symbols: Symbols, value: int) -> Any:
    return symbols.of("session", int(value)) if value else 0


_BY_NAME: tuple[tuple[set[str], Callable[[Symbols, Any], Any]], ...] = (
    (NODES, _id("node")),
    (PRODUCERS, _id("producer")),
    (EPOCHS, epoch_symbol),
    (MEMBERS, _member),
    ({"session_id"}, _session),
    (TIMES, time_symbol),
)


def name_of(row: Any) -> str | None:
    """Return the name of the topic or group of a row, or None if it has no such field."""
    for field in ROW_NAMES:
        name = getattr(row, field, None)
        if isinstance(name, str):
            return name
    return None


def _identity(row: Any) -> list[tuple[int, Any]]:
    """Return what orders rows equally for both servers: names before numbers."""
    if isinstance(row, int | str):
        return [(False, row)]
    values = [getattr(row, field, None) for field in _IDENTITY]
    return [(value is None, 0 if value is None else _sortable(value)) for value in values]


def _sortable(value: Any) -> Any:
    return str(value) if isinstance(value, uuid.UUID | tuple) else value
