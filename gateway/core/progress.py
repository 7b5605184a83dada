"""How far clients that commit nothing have read, known from what they fetch. Pure.

Spark's Kafka source commits no offsets, and its executors call themselves after their group:
`consumer-<prefix>-<uuid>[-<hash>]-executor-<n>`. So the offset that such a client asks for next is
where its query stands, and its group is shown as a *read-only group*. The uuid is new with each
start; a streaming query has a hash of its checkpoint as well, which stays, so a restarted query
takes the place of what it was before. Source: Spark, KafkaSourceProvider (streamingUniqueGroupId,
batchUniqueGroupId, kafkaParamsForExecutors); Kafka, ConsumerConfig (client ids by default).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from gateway.config import ReaderLimits

MARK = "-executor-"
"""In the client id of each executor's consumer; asked of every Fetch, so it is a plain word."""

_NAME_MAX = 512  # characters of a client id; Kafka has no bound, memory has
_GROUP = re.compile(
    r"(?P<prefix>.+)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(?P<hash>--?\d{1,10})?-executor"
)
_CLIENT = re.compile(r"consumer-(?P<group>.+-executor)-\d{1,9}")

ReadKey = tuple[UUID, int]
"""Topic id and partition."""


class Fetched(NamedTuple):
    """A partition as it was last asked for: the offset after what its reader has."""

    offset: int
    at_ms: int  # wall time
    client: str
    host: str


class ReadGroup(NamedTuple):
    """A read-only group, or what one gateway knows of it."""

    name: str
    positions: dict[ReadKey, Fetched]
    clients: dict[tuple[str, str], int]  # client id and host: when it last fetched


class _Reader:
    """One read-only group. `query`: what is the same after a restart; None: nothing is."""

    __slots__ = ("clients", "idle_ms_max", "name", "positions", "query", "seen_ms")

    def __init__(self, name: str, query: str | None, idle_ms_max: int) -> None:
        self.name = name
        self.query = query
        self.idle_ms_max = idle_ms_max
        self.seen_ms = 0
        self.positions: dict[ReadKey, Fetched] = {}
        self.clients: OrderedDict[tuple[str, str], int] = OrderedDict()


def is_read_group(name: str) -> bool:
    """Whether a group of this name can be a read-only one."""
    return len(name) <= _NAME_MAX and _GROUP.fullmatch(name) is not None


class ReadProgress:
    """The read-only groups of one gateway, the one that fetched longest ago first."""

    def __init__(self, limits: ReaderLimits) -> None:
        self._limits = limits
        self._readers: OrderedDict[str, _Reader] = OrderedDict()
        self._by_query: dict[str, _Reader] = {}
        self._by_client: dict[str, _Reader] = {}  # of clients seen; as many as they have
        self._positions = 0  # of all readers

    def __len__(self) -> int:
        return len(self._readers)

    def note(
        self, client: str, host: str, fetched: Iterable[tuple[ReadKey, int]], now_ms: int
    ) -> None:
        """The client asks for these offsets next; nothing if it is not named as executors are.

        What is not in `fetched` it asks for as before.
        """
        reader = self._by_client.get(client) or self._follow(client, now_ms)
        if reader is None:
            return
        self._readers.move_to_end(reader.name)
        reader.seen_ms = now_ms
        who = (client, host)
        if who not in reader.clients and len(reader.clients) >= self._limits.clients_max:
            self._forget_client(reader)
        reader.clients[who] = now_ms
        reader.clients.move_to_end(who)
        self._by_client[client] = reader
        for key, offset in fetched:
            if key not in reader.positions and not self._room_for(reader):
                continue
            reader.positions[key] = Fetched(offset, now_ms, client, host)

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

    def _room_for(self, reader: _Reader) -> bool:
        """One more position is counted; others are forgotten for it if need be."""
        while self._positions >= self._limits.positions_max:
            oldest = next(iter(self._readers.values()))
            if oldest is reader:
                return False
            self._remove(oldest)
        self._positions += 1
        return True

    def _forget_client(self, reader: _Reader) -> None:
        """The one that fetched longest ago; where it stood is still where the group stands."""
        (client, _), _ = reader.clients.popitem(last=False)
        if all(client != known for known, _ in reader.clients):
            self._by_client.pop(client, None)

    def _remove(self, reader: _Reader) -> None:
        del self._readers[reader.name]
        self._positions -= len(reader.positions)
        for client, _ in reader.clients:
            self._by_client.pop(client, None)
        if reader.query:
            del self._by_query[reader.query]

    def expire(self, now_ms: int) -> None:
        """Groups that have not fetched for so long are gone: batches soon, streams after a day."""
        gone = [each for each in self._readers.values() if now_ms - each.seen_ms > each.idle_ms_max]
        for reader in gone:
            self._remove(reader)

    def forget_topic(self, topic_id: UUID) -> None:
        """Nothing is known of it any more; a group that read nothing else is gone."""
        for reader in list(self._readers.values()):
            gone = [key for key in reader.positions if key[0] == topic_id]
            for key in gone:
                del reader.positions[key]
            self._positions -= len(gone)
            if gone and not reader.positions:
                self._remove(reader)

    def get(self, name: str, now_ms: int) -> ReadGroup | None:
        self.expire(now_ms)
        reader = self._readers.get(name)
        return None if reader is None else _shown(reader)

    def names(self, now_ms: int) -> list[str]:
        """Of `groups`."""
        self.expire(now_ms)
        return [each.name for each in reversed(self._readers.values()) if each.positions]

    def groups(self, now_ms: int) -> Iterator[ReadGroup]:
        """All that have a position, the one that fetched last first."""
        self.expire(now_ms)
        return (_shown(each) for each in reversed(self._readers.values()) if each.positions)


def _shown(reader: _Reader) -> ReadGroup:
    return ReadGroup(reader.name, dict(reader.positions), dict(reader.clients))


def merged(name: str, parts: Iterable[ReadGroup]) -> ReadGroup | None:
    """What several gateways know of a group, as one; None: none of them knows it.

    Where two know a position, because the partition has moved, the later one holds.
    """
    positions: dict[ReadKey, Fetched] = {}
    clients: dict[tuple[str, str], int] = {}
    for part in parts:
        for key, fetched in part.positions.items():
            known = positions.get(key)
            if known is None or known.at_ms <= fetched.at_ms:
                positions[key] = fetched
        for who, seen_ms in part.clients.items():
            clients[who] = max(seen_ms, clients.get(who, seen_ms))
    return ReadGroup(name, positions, clients) if positions else None
