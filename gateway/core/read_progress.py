"""Tracks how far clients that commit no offsets have read, by what they fetch. Pure.

Spark's Kafka source commits no offsets, and its executors use client ids that contain their group:
`consumer-<prefix>-<uuid>[-<hash>]-executor-<n>`. The offset that such a client fetches next is the
progress of its query, and its group is listed as a *read-only group*. The uuid changes with each
start. A streaming query also has a hash of its checkpoint, which stays the same, so a restarted
query replaces its former group. Source: Spark, KafkaSourceProvider (streamingUniqueGroupId,
batchUniqueGroupId, kafkaParamsForExecutors); Kafka, ConsumerConfig (default client ids).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from gateway.config import ReaderLimits

EXECUTOR_MARK = "-executor-"
"""Part of the client id of each executor's consumer. Every Fetch is checked for this substring."""

_NAME_MAX = 512  # characters of a client id; Kafka has no limit
_GROUP = re.compile(
    r"(?P<prefix>.+)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(?P<hash>--?\d{1,10})?-executor"
)
_CLIENT = re.compile(r"consumer-(?P<group>.+-executor)-\d{1,9}")

ReadKey = tuple[UUID, int]
"""Topic id and partition."""


class LastFetch(NamedTuple):
    """The newest fetch of a partition. `offset` is the offset of the next record to read."""

    offset: int
    at_ms: int  # wall-clock time of the fetch
    client: str
    host: str


class ReadGroup(NamedTuple):
    """A read-only group, either whole or limited to the partitions and clients of one broker."""

    name: str
    fetches: dict[ReadKey, LastFetch]
    clients: dict[tuple[str, str], int]  # time of the last fetch, by client id and host


class _Reader:
    """The state of one read-only group."""

    __slots__ = ("clients", "fetches", "idle_ms_max", "name", "query", "seen_ms")

    def __init__(self, name: str, query: str | None, idle_ms_max: int) -> None:
        # The group id. Fixed.
        self.name = name
        # The part of the name that is the same after a restart; None for a batch query.
        self.query = query
        # The group expires this many milliseconds after its last fetch.
        self.idle_ms_max = idle_ms_max
        # The time of the last fetch, wall clock.
        self.seen_ms = 0
        # The newest fetch of each partition. `ReadProgress._partitions` counts these entries.
        self.fetches: dict[ReadKey, LastFetch] = {}
        # The last fetch of each (client id, host), the oldest first; at most `clients_max`.
        self.clients: OrderedDict[tuple[str, str], int] = OrderedDict()


def is_read_group(name: str) -> bool:
    """Return whether the group id is that of a read-only group."""
    return len(name) <= _NAME_MAX and _GROUP.fullmatch(name) is not None


class ReadProgress:
    """The read-only groups of one broker."""

    def __init__(self, limits: ReaderLimits) -> None:
        self._limits = limits
        # By group id, the group with the oldest last fetch first; at most `groups_max`.
        self._readers: OrderedDict[str, _Reader] = OrderedDict()
        # The groups of streaming queries, by `query`. Each query has one group.
        self._by_query: dict[str, _Reader] = {}
        # The group of each client, by client id. Contains exactly the clients in `_Reader.clients`.
        self._by_client: dict[str, _Reader] = {}
        # The number of partitions of all groups; at most `positions_max`.
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._readers)

    def note(
        self, client: str, host: str, fetched: Iterable[tuple[ReadKey, int]], now_ms: int
    ) -> bool:
        """Record the offsets that a client fetches next, if it is one of Spark's executors.

        Partitions that are not in `fetched` keep their offsets. Returns False for other clients.
        """
        reader = self._by_client.get(client) or self._follow(client, now_ms)
        if reader is None:
            return False
        self._readers.move_to_end(reader.name)
        reader.seen_ms = now_ms
        member = (client, host)
        if member not in reader.clients and len(reader.clients) >= self._limits.clients_max:
            self._forget_client(reader)
        reader.clients[member] = now_ms
        reader.clients.move_to_end(member)
        self._by_client[client] = reader
        for key, offset in fetched:
            if key not in reader.fetches and not self._make_room(reader):
                continue
            reader.fetches[key] = LastFetch(offset, now_ms, client, host)
        return True

    def _follow(self, client: str, now_ms: int) -> _Reader | None:
        if len(client) > _NAME_MAX:
            return None
        named = _CLIENT.fullmatch(client)
        group = named and _GROUP.fullmatch(named["group"])
        if not named or not group:
            return None
        name = named["group"]
        known = self._readers.get(name)
        if known is not None:
            return known
        self.expire(now_ms)
        hashed = group["hash"]
        query = group["prefix"] + hashed if hashed else None
        before = self._by_query.get(query) if query else None
        if before is not None:
            self._remove(before)
        while len(self._readers) >= self._limits.groups_max:
            self._remove(next(iter(self._readers.values())))
        limits = self._limits
        idle_s_max = limits.stream_idle_s_max if hashed else limits.batch_idle_s_max
        reader = self._readers[name] = _Reader(name, query, int(idle_s_max * 1000))
        if query:
            self._by_query[query] = reader
        return reader

    def _make_room(self, reader: _Reader) -> bool:
        """Count one more partition, evicting other groups if necessary.

        Returns False if there is no room.
        """
        while self._partitions >= self._limits.positions_max:
            oldest = next(iter(self._readers.values()))
            if oldest is reader:
                return False
            self._remove(oldest)
        self._partitions += 1
        return True

    def _forget_client(self, reader: _Reader) -> None:
        """Drop the client with the oldest last fetch. The offsets that it fetched stay."""
        (client, _), _ = reader.clients.popitem(last=False)
        if all(client != known for known, _ in reader.clients):
            self._by_client.pop(client, None)

    def _remove(self, reader: _Reader) -> None:
        del self._readers[reader.name]
        self._partitions -= len(reader.fetches)
        for client, _ in reader.clients:
            self._by_client.pop(client, None)
        if reader.query:
            del self._by_query[reader.query]

    def expire(self, now_ms: int) -> None:
        """Drop groups without a fetch for `idle_ms_max`, which is longer for streaming queries."""
        gone = [each for each in self._readers.values() if now_ms - each.seen_ms > each.idle_ms_max]
        for reader in gone:
            self._remove(reader)

    def forget_topic(self, topic_id: UUID) -> None:
        """Drop a deleted topic, and the groups that read no other topic."""
        for reader in list(self._readers.values()):
            gone = [key for key in reader.fetches if key[0] == topic_id]
            for key in gone:
                del reader.fetches[key]
            self._partitions -= len(gone)
            if gone and not reader.fetches:
                self._remove(reader)

    def get(self, name: str, now_ms: int) -> ReadGroup | None:
        """Return the part of the group that this broker has seen, or None."""
        self.expire(now_ms)
        reader = self._readers.get(name)
        return None if reader is None else _group(reader)

    def names(self, now_ms: int) -> list[str]:
        """Return the names of `groups`."""
        self.expire(now_ms)
        return [each.name for each in reversed(self._readers.values()) if each.fetches]

    def groups(self, now_ms: int) -> Iterator[ReadGroup]:
        """Return the groups that have fetched a partition, the latest fetch first."""
        self.expire(now_ms)
        return (_group(each) for each in reversed(self._readers.values()) if each.fetches)


def _group(reader: _Reader) -> ReadGroup:
    return ReadGroup(reader.name, dict(reader.fetches), dict(reader.clients))


def merge_read_groups(name: str, parts: Iterable[ReadGroup]) -> ReadGroup | None:
    """Merge the parts of a group from several brokers. Returns None if no part has a fetch.

    If two brokers report a fetch of the same partition, its leader has moved. The later fetch then
    counts.
    """
    fetches: dict[ReadKey, LastFetch] = {}
    clients: dict[tuple[str, str], int] = {}
    for part in parts:
        for key, fetch in part.fetches.items():
            known = fetches.get(key)
            if known is None or known.at_ms <= fetch.at_ms:
                fetches[key] = fetch
        for member, seen_ms in part.clients.items():
            clients[member] = max(seen_ms, clients.get(member, seen_ms))
    return ReadGroup(name, fetches, clients) if fetches else None
