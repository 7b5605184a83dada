"""A Kafka client for admin requests: finds the coordinator of a group and the leaders of a topic.

It connects to the first bootstrap server that answers, and to the other brokers at the addresses in
its metadata. A coordinator or leader that moved is looked up again, for up to `retry_s_max`
seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from gateway.admin.addresses import parse_bootstrap
from gateway.admin.client_settings import ClientSettings
from gateway.wire.client_link import (
    VERSION_MAX,
    AdminError,
    Link,
    NoToken,
    Unreachable,
    raise_for,
)

__all__ = ["AdminClient", "AdminError", "Broker", "Unreachable", "parse_bootstrap", "raise_for"]

_METADATA, _FIND_COORDINATOR = 3, 10
_RETRY_S = 0.1
_RETRY_S_MAX = 1.0
LEADER_MOVED = frozenset(
    {
        "not_leader_or_follower",
        "leader_not_available",
        "fenced_leader_epoch",
        "unknown_leader_epoch",
        "offset_not_available",
        "request_timed_out",
    }
)
"""Error codes of a leader that are retried."""
_MOVED = LEADER_MOVED | {
    "not_coordinator",
    "coordinator_not_available",
    "coordinator_load_in_progress",
}
"""Error codes that are retried: the coordinator or leader moved, or the broker is not ready yet."""

Fields = Callable[[int], dict[str, Any]]
"""Maps the version of a request to its fields."""
Codes = Callable[[Any], Iterable[Any]]
"""Maps a response to the error codes in it."""
Place = tuple[str, int]
"""A topic and the index of a partition."""


class Broker(NamedTuple):
    """One broker of the cluster."""

    node_id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port} ({self.node_id})"


class AdminClient:
    """A Kafka client for admin requests to the cluster of these bootstrap servers.

    Use as `async with AdminClient(settings) as client`. Servers alone are connected to in plain
    text. Raises UnsupportedSecurity if the settings need more; every method may raise Unreachable.
    """

    def __init__(
        self,
        settings: ClientSettings | str,
        *,
        connect_s_max: float = 5.0,
        answer_s_max: float = 30.0,
        retry_s_max: float = 20.0,
    ) -> None:
        self.settings = ClientSettings(settings) if isinstance(settings, str) else settings
        self.security = self.settings.security()
        self._servers = self.settings.servers
        self._connect_s_max = connect_s_max
        self._answer_s_max = answer_s_max
        self._retry_s_max = retry_s_max
        # Open connections, by host and port. A connection that fails is removed and closed.
        self._links: dict[tuple[str, int], Link] = {}
        # Host and port of each server that has answered. Its protocol is known for new connections.
        self._answered: set[tuple[str, int]] = set()
        # The connection to a bootstrap server, for requests that any broker answers. None before
        # the first request. Also None after this connection failed, until another one is open.
        self._first: Link | None = None

    @property
    def bootstrap_hosts(self) -> list[str]:
        return [host for host, _ in self._servers]

    async def __aenter__(self) -> Self:
        try:
            await self._any()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        for link in self._links.values():
            await link.close()
        self._links.clear()
        self._first = None

    # connections

    async def _any(self) -> Link:
        """Return a connection to the first bootstrap server that answers."""
        if self._first is not None and self._first.is_over:
            await self._forget(self._first)
        if self._first is not None:
            return self._first
        faults: list[Unreachable] = []
        for host, port in self._servers:
            try:
                self._first = await self._link(host, port)
                return self._first
            except NoToken:  # the next server would need the same
                raise
            except Unreachable as error:
                faults.append(error)
        kinds = {type(each) for each in faults}
        kind = kinds.pop() if len(kinds) == 1 else Unreachable
        raise kind("; ".join(map(str, faults)))

    def place_of(self, broker: Broker) -> tuple[str, int]:
        """Return host and port at which this broker is reached from here."""
        node_id, host, port = broker
        reach = self.settings.reach
        return (host, port) if reach is None else reach(node_id, host, port)

    async def _link(self, host: str, port: int) -> Link:
        link = self._links.get((host, port))
        if link is not None and link.is_over:
            await self._forget(link)
            link = None
        if link is None:
            link = Link(host, port, self._answer_s_max, security=self.security)
            link.answered = (host, port) in self._answered
            await link.open(self._connect_s_max)
            await self._introduce(link)
            other = self._links.get((host, port))
            if other is not None:  # another task was faster
                await link.close()
                return other
            self._links[host, port] = link
        return link

    async def _introduce(self, link: Link) -> None:
        if self.settings.opened is None:
            return
        try:
            await self.settings.opened(link)
        except BaseException:
            await link.close()
            raise

    async def _forget(self, link: Link) -> None:
        """Close a connection that failed.

        The next request opens a new connection, perhaps to another broker.
        """
        for address in [each for each, known in self._links.items() if known is link]:
            del self._links[address]
            if link.answered:
                self._answered.add(address)
        if self._first is link:
            self._first = None
        await link.close()

    async def _send(self, link: Link, key: int, fields: dict[str, Any], version_max: int) -> Any:
        try:
            return await link.send(key, fields, version_max)
        except Unreachable:
            await self._forget(link)
            raise

    # requests that any server answers

    def version(self, key: int, version_max: int = VERSION_MAX) -> int:
        """Return the highest version of `key` that both sides support. Raises AdminError."""
        assert self._first is not None
        return self._first.version(key, version_max)

    async def send(
        self, key: int, fields: dict[str, Any], *, version_max: int = VERSION_MAX
    ) -> Any:
        """Send a request to any broker, in the highest common version. Returns kio's response."""
        return await self._send(await self._any(), key, fields, version_max)

    async def metadata(self, topics: Sequence[str] | None) -> Any:
        """Request the metadata of the brokers and of these topics.

        None requests all topics. An empty list requests no topic.
        """
        asked = None if topics is None else [{"name": name} for name in topics]
        return await self.send(_METADATA, {"topics": asked, "allow_auto_topic_creation": False})

    async def brokers(self) -> list[Broker]:
        answer = await self.metadata([])
        return [_broker(each) for each in answer.brokers]

    # requests that one server answers

    async def at_broker(
        self, broker: Broker, key: int, fields: Fields, version_max: int = VERSION_MAX
    ) -> Any:
        link = await self._link(*self.place_of(broker))
        version = link.version(key, version_max)
        return await self._send(link, key, fields(version), version_max)

    async def reaches_gateway(self) -> bool:
        """Return whether the server is a gateway of this project."""
        return await (await self._any()).is_gateway()

    async def ask_gateway(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a private request to the server that is connected. Raises AdminError."""
        return await self._ask_privately(await self._any(), body)

    async def _ask_privately(self, link: Link, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await link.ask_privately(body)
        except Unreachable:
            await self._forget(link)
            raise

    async def ask_gateways(
        self, body: Callable[[Broker], dict[str, Any]]
    ) -> dict[int, dict[str, Any] | AdminError | Unreachable]:
        """Send a private request to every gateway at once. Returns answers or errors by node id.

        Raises AdminError if the servers are no gateways of this project, or if the client lacks the
        right to ask.
        """
        await (await self._any()).require_gateway()
        brokers = await self.brokers()

        async def ask(broker: Broker) -> dict[str, Any] | AdminError | Unreachable:
            try:
                link = await self._link(*self.place_of(broker))
                return await self._ask_privately(link, body(broker))
            except (AdminError, Unreachable) as error:
                return error

        found = await asyncio.gather(*map(ask, brokers))
        for each in found[:1]:  # a client without the right has it at no gateway
            if isinstance(each, AdminError) and each.code.endswith("_AUTHORIZATION_FAILED"):
                raise each
        return {broker.node_id: each for broker, each in zip(brokers, found, strict=True)}

    async def coordinator(self, group: str, key_type: int = 0) -> Broker:
        """Find the coordinator of the group, or of another key. Raises AdminError."""
        fields = {"key": group, "key_type": key_type, "coordinator_keys": [group]}
        retry = _Retry(self._retry_s_max)
        while True:
            try:
                answer = await self.send(_FIND_COORDINATOR, fields)
            except Unreachable:
                if not await retry.again():
                    raise
                continue
            found = answer.coordinators[0] if hasattr(answer, "coordinators") else answer
            if found.error_code.name not in _MOVED or not await retry.again():
                raise_for(found.error_code, found.error_message or None, group)
                return _broker(found)

    async def at_coordinator(
        self,
        group: str,
        key: int,
        fields: Fields,
        codes: Codes,
        *,
        version_max: int = VERSION_MAX,
        key_type: int = 0,
    ) -> Any:
        """Send a request to the coordinator of the group or other key, retrying while it moves.

        Returns its response, or the last response if the time for retries is up.
        """
        retry = _Retry(self._retry_s_max)
        while True:
            try:
                broker = await self.coordinator(group, key_type)
                answer = await self.at_broker(broker, key, fields, version_max)
            except Unreachable:
                if not await retry.again():
                    raise
                continue
            if not _moved(codes(answer)) or not await retry.again():
                return answer

    async def at_every_broker(self, key: int, fields: Fields, codes: Codes) -> list[Any]:
        """Send a request to every broker in the metadata, retrying the brokers that fail.

        Returns one response per broker. Raises Unreachable if a broker still fails at the end.
        """
        retry = _Retry(self._retry_s_max)
        answers: dict[int, Any] = {}
        known: list[Broker] = []
        while True:
            fault: Unreachable | None = None
            brokers = await self._brokers(retry)
            if brokers != known:  # a group may have moved to a broker that has already answered
                answers, known = {}, brokers
            for broker in brokers:
                if broker.node_id in answers and not _moved(codes(answers[broker.node_id])):
                    continue
                try:
                    answers[broker.node_id] = await self.at_broker(broker, key, fields, VERSION_MAX)
                except Unreachable as error:
                    fault = error
            found = [answers[each.node_id] for each in brokers if each.node_id in answers]
            waits = fault is not None or any(_moved(codes(answer)) for answer in found)
            if waits and await retry.again():
                continue
            if fault is not None:
                raise fault
            return found

    async def _brokers(self, retry: _Retry) -> list[Broker]:
        while True:
            try:
                return await self.brokers()
            except Unreachable:
                if not await retry.again():
                    raise

    async def at_leaders(
        self,
        places: Iterable[Place],
        key: int,
        fields: Callable[[Mapping[str, Sequence[int]]], dict[str, Any]],
        retry_s_max: float | None = None,
    ) -> dict[Place, Any]:
        """Send requests to the leaders of these partitions.

        `fields` builds the fields of a request from its topics. Returns the response for each
        partition. A partition is left out if its leader is unknown, refused the request, or has
        not answered when the time for retries is up: `retry_s_max`, or the client's if that is
        shorter. A single answer may take longer.
        """
        found = await self.at_leaders_or_errors(places, key, fields, retry_s_max)
        return {place: each for place, each in found.items() if not each.error_code.value}

    async def at_leaders_or_errors(
        self,
        places: Iterable[Place],
        key: int,
        fields: Callable[[Mapping[str, Sequence[int]]], dict[str, Any]],
        retry_s_max: float | None = None,
    ) -> dict[Place, Any]:
        """Send requests as `at_leaders` does. The result includes responses with an error code."""
        most_s = self._retry_s_max
        retry = _Retry(most_s if retry_s_max is None else min(retry_s_max, most_s))
        found: dict[Place, Any] = {}
        left = set(places)
        while left:
            leaders = await self._leaders(left, retry)
            left &= leaders.keys()
            led: dict[Broker, dict[str, list[int]]] = {}
            for name, index in sorted(left):
                leader = leaders[name, index]
                if leader is not None:
                    led.setdefault(leader, {}).setdefault(name, []).append(index)
            for leader, here in led.items():
                found |= await self._at_leader(leader, key, fields(here))
            left = {p for p in left if p not in found or _moved([found[p].error_code])}
            if left and not await retry.again():
                break
        return found

    async def leaders(
        self, places: Iterable[Place], retry_s_max: float | None = None
    ) -> dict[Place, Broker]:
        """Return the leaders of these partitions. One that has none after retries is left out."""
        most_s = self._retry_s_max
        retry = _Retry(most_s if retry_s_max is None else min(retry_s_max, most_s))
        left = set(places)
        while True:
            found = await self._leaders(left, retry)
            known = {place: each for place, each in found.items() if each and place in left}
            waits = any(each is None for place, each in found.items() if place in left)
            if not waits or not await retry.again():
                return known

    async def at_leader(
        self,
        place: Place,
        key: int,
        fields: Fields,
        codes: Codes,
        version_max: int = VERSION_MAX,
    ) -> Any:
        """Send a request to the leader of the partition, retrying while it moves.

        Returns its response, or the last response if the time for retries is up. Raises AdminError
        if the partition does not exist, or has no leader.
        """
        retry = _Retry(self._retry_s_max)
        while True:
            try:
                leader = await self._leader(place, retry)
                answer = await self.at_broker(leader, key, fields, version_max)
            except Unreachable:
                if not await retry.again():
                    raise
                continue
            if not _moved(codes(answer)) or not await retry.again():
                return answer

    async def _leader(self, place: Place, retry: _Retry) -> Broker:
        """Return the leader of a partition. Raises AdminError if it has none for a while."""
        name = f"{place[0]}-{place[1]}"
        while True:
            leaders = await self._leaders({place}, retry)
            if place not in leaders:
                raise AdminError(f"{name} does not exist", "UNKNOWN_TOPIC_OR_PARTITION")
            leader = leaders[place]
            if leader is not None:
                return leader
            if not await retry.again():
                raise AdminError(f"{name} has no leader", "LEADER_NOT_AVAILABLE")

    async def _at_leader(
        self, broker: Broker, key: int, fields: dict[str, Any]
    ) -> dict[Place, Any]:
        """Return the response for each partition, or no response if the broker is unreachable."""
        try:
            answer = await self.at_broker(broker, key, lambda _: fields, VERSION_MAX)
        except Unreachable:
            return {}
        return {
            (topic.name, each.partition_index): each
            for topic in answer.topics
            for each in topic.partitions
        }

    async def _leaders(self, places: set[Place], retry: _Retry) -> dict[Place, Broker | None]:
        """Map each partition that exists to its leader, or to None if the leader is unknown."""
        try:
            answer = await self.metadata(sorted({name for name, _ in places}))
        except Unreachable:
            if retry.over:
                raise
            return dict.fromkeys(places)
        brokers = {each.node_id: _broker(each) for each in answer.brokers}
        return {
            (topic.name, each.partition_index): brokers.get(each.leader_id)
            for topic in answer.topics
            for each in topic.partitions
        }


def _broker(each: Any) -> Broker:
    return Broker(each.node_id, each.host, each.port)


class _Retry:
    """The deadline of retries, and the pause before the next retry.

    The pause doubles up to `_RETRY_S_MAX` seconds.
    """

    def __init__(self, retry_s_max: float) -> None:
        self._end_s = asyncio.get_running_loop().time() + retry_s_max
        self._wait_s = _RETRY_S

    @property
    def over(self) -> bool:
        return asyncio.get_running_loop().time() + self._wait_s > self._end_s

    async def again(self) -> bool:
        """Pause and return True, or return False if the time for retries is up."""
        if self.over:
            return False
        await asyncio.sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _RETRY_S_MAX)
        return True


def _moved(codes: Iterable[Any]) -> bool:
    return any(code.name in _MOVED for code in codes)
