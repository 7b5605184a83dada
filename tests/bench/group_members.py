"""A group of many members in one event loop, of either protocol, for `make bench-groups`.

Members of the consumer protocol share connections, as their heartbeats never wait. Those of the
classic protocol have one each: JoinGroup waits for all others. No member pauses: after a change all
of them send a heartbeat at once, and again until the group is stable.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Self
from uuid import UUID

from tests.bench import group_wire as wire

TOPIC = "bench"
CONNECTIONS = 8
STABLE_S_MAX = 120.0
PROBE_S = 0.02  # between two looks whether a silent member was removed
STORM_S = 0.1  # a member that joined alone looks after this time whether others came
KEEP_S = 2.0  # between two heartbeats of all, while nothing happens
CONSUMER_SESSION_S, CLASSIC_SESSION_S = 45.0, 45.0  # the defaults of both sides and their clients


class Unstable(AssertionError):
    """A group did not become stable, or a member got an error."""


class ConsumerMember:
    """One member of the consumer protocol, as its client sees itself."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.name = str(uuid.uuid4())
        self.epoch = 0
        self.owned: frozenset[int] = frozenset()
        self.reports = False  # the next heartbeat lists what it owns

    def request(self, topic_id: UUID) -> bytes:
        if self.epoch == 0:
            return wire.consumer_heartbeat(self.group, self.name, 0, topics=[TOPIC])
        owned = (topic_id, self.owned) if self.reports else None
        return wire.consumer_heartbeat(self.group, self.name, self.epoch, owned=owned)

    def take(self, answer: bytes) -> None:
        beat = wire.parse_beat(answer)
        if beat.code != wire.NONE:
            raise Unstable(f"a heartbeat in epoch {self.epoch}: error {beat.code}")
        self.epoch, self.reports = beat.epoch, False
        if beat.assigned is not None and beat.assigned != self.owned:
            self.owned, self.reports = beat.assigned, True


class ConsumerGroup:
    """Members of the consumer protocol that share a topic."""

    session_s = CONSUMER_SESSION_S

    def __init__(self, address: str, name: str, partitions: int, topic_id: UUID) -> None:
        self._address, self.name = address, name
        self._partitions, self._topic_id = partitions, topic_id
        self._connections: list[wire.Connection] = []
        self.members: list[ConsumerMember] = []

    async def __aenter__(self) -> Self:
        self._connections = [await wire.connected(self._address) for _ in range(CONNECTIONS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self._connections:
            each.close()

    async def _round(self, members: list[ConsumerMember]) -> None:
        """Let each member send a heartbeat, and take its answer."""
        asked = [
            self._connections[number % CONNECTIONS].ask(member.request(self._topic_id))
            for number, member in enumerate(members)
        ]
        for member, answer in zip(members, await asyncio.gather(*asked), strict=True):
            member.take(answer)

    async def heartbeats(self, rounds: int) -> int:
        """Send heartbeats that change nothing. Returns how many."""
        for _ in range(rounds):
            await self._round(self.members)
        return rounds * len(self.members)

    async def join(self, count: int) -> None:
        self.members += [ConsumerMember(self.name) for _ in range(count)]
        await self._round(self.members[-count:])

    async def leave(self) -> None:
        gone = self.members.pop()
        request = wire.consumer_heartbeat(self.name, gone.name, -1)
        code = wire.parse_beat(await self._connections[0].ask(request)).code
        assert code == wire.NONE, code

    async def die(self) -> float:
        """Let a member be silent until it is removed. Returns when its session ended."""
        await self._round(self.members)
        gone = self.members.pop()
        ends_s = time.monotonic() + self.session_s
        epoch, first, kept_s = gone.epoch, self.members[0], time.monotonic()
        while first.epoch == epoch:
            await asyncio.sleep(PROBE_S)
            now_s = time.monotonic()
            if now_s > ends_s + STABLE_S_MAX:
                raise Unstable("a silent member was not removed")
            everyone = now_s - kept_s > KEEP_S
            kept_s = now_s if everyone else kept_s
            await self._round(self.members if everyone else [first])
        return ends_s

    async def settle(self) -> None:
        """Send heartbeats until all members have their part of one assignment."""
        ends_s = time.monotonic() + STABLE_S_MAX
        while not self._is_stable():
            if time.monotonic() > ends_s:
                raise Unstable(f"{len(self.members)} members are not stable")
            await self._round(self.members)

    def _is_stable(self) -> bool:
        if len({each.epoch for each in self.members}) != 1 or any(m.reports for m in self.members):
            return False
        owned = [each.owned for each in self.members]
        whole = sum(map(len, owned)) == self._partitions == len(frozenset().union(*owned))
        least, most = min(map(len, owned)), max(map(len, owned))
        return whole and most - least <= 1


class ClassicMember:
    """One member of the classic protocol, on a connection of its own."""

    def __init__(self, connection: wire.Connection) -> None:
        self.connection = connection
        self.name = ""
        self.generation = -1
        # Joins and syncs until it has its part of a generation; None before its first join.
        self.joining: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it has its part of a generation, and may send a heartbeat."""
        return self.joining is not None and self.joining.done()


class ClassicGroup:
    """Members of the classic protocol. Their leader gives each a range."""

    def __init__(self, address: str, name: str, partitions: int, topic_id: UUID) -> None:
        self.session_s = CLASSIC_SESSION_S
        self._address, self.name, self._partitions = address, name, partitions
        self._settled = -1  # the generation in which all members were last
        self.members: list[ClassicMember] = []
        self._gone: list[ClassicMember] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in (*self.members, *self._gone):
            if each.joining is not None:
                each.joining.cancel()
            each.connection.close()

    async def heartbeats(self, rounds: int) -> int:
        """Send heartbeats that change nothing. Returns how many."""
        for _ in range(rounds):
            codes = set(await self._beat(self.members))
            if codes != {wire.NONE}:
                raise Unstable(f"heartbeats: {codes}")
        return rounds * len(self.members)

    async def _beat(self, members: list[ClassicMember]) -> list[int]:
        asked = [
            each.connection.ask(wire.heartbeat(self.name, each.generation, each.name))
            for each in members
        ]
        return [wire.parse_code(answer) for answer in await asyncio.gather(*asked)]

    async def join(self, count: int) -> None:
        """Let members join at once: none of them while another one still connects."""
        joining = [ClassicMember(await wire.connected(self._address)) for _ in range(count)]
        self.members += joining
        for member in joining:
            member.joining = asyncio.ensure_future(self._join(member))

    async def _join(self, member: ClassicMember) -> None:
        """Join and sync until the member has its part of a generation."""
        code = wire.REBALANCE_IN_PROGRESS
        while code == wire.REBALANCE_IN_PROGRESS:
            session_ms = int(self.session_s * 1000)
            request = wire.join(self.name, member.name, session_ms, TOPIC)
            found = wire.parse_joined(await member.connection.ask(request))
            if found.code != wire.NONE:
                raise Unstable(f"JoinGroup: error {found.code}")
            member.name, member.generation = found.member, found.generation
            parts = self._parts(found.members) if found.leader == found.member else {}
            request = wire.sync(self.name, found.generation, found.member, parts)
            code, data = wire.parse_synced(await member.connection.ask(request))
        if code != wire.NONE or not data:
            raise Unstable(f"SyncGroup: error {code}")

    async def leave(self) -> None:
        gone = self.members.pop()
        self._gone.append(gone)
        code = wire.parse_code(await gone.connection.ask(wire.leave(self.name, gone.name)))
        if code != wire.NONE:
            raise Unstable(f"LeaveGroup: error {code}")

    async def die(self) -> float:
        """Let a member be silent until it is removed. Returns when its session ended."""
        await self.heartbeats(1)
        gone = self.members.pop()
        self._gone.append(gone)
        now_s = kept_s = time.monotonic()
        ends_s = now_s + self.session_s
        while now_s < ends_s + STABLE_S_MAX:
            await asyncio.sleep(PROBE_S)
            now_s = time.monotonic()
            everyone = now_s - kept_s > KEEP_S
            kept_s = now_s if everyone else kept_s
            codes = await self._beat(self.members if everyone else self.members[:1])
            if wire.REBALANCE_IN_PROGRESS in codes:
                return ends_s
        raise Unstable("a silent member was not removed")

    async def settle(self) -> None:
        """Let members learn of the rebalance by a heartbeat, until all are in one generation."""
        ends_s = time.monotonic() + STABLE_S_MAX
        while not self._is_stable():
            if time.monotonic() > ends_s:
                raise Unstable(f"{len(self.members)} members are not stable")
            idle = [each for each in self.members if each.is_idle]
            for member, code in zip(idle, await self._beat(idle), strict=True):
                if code == wire.REBALANCE_IN_PROGRESS:
                    member.joining = asyncio.ensure_future(self._join(member))
                elif code != wire.NONE:
                    raise Unstable(f"a heartbeat: error {code}")
            busy = [each.joining for each in self.members if each.joining and not each.is_idle]
            if busy:
                await asyncio.wait(busy, timeout=STORM_S)

    def _is_stable(self) -> bool:
        """Whether all members have their part of one generation that is new."""
        if not all(each.is_idle for each in self.members):
            return False
        for each in self.members:
            assert each.joining is not None
            each.joining.result()  # raises what it raised
        generations = {each.generation for each in self.members}
        if len(generations) != 1 or self._settled in generations:
            return False
        (self._settled,) = generations
        return True

    def _parts(self, members: tuple[str, ...]) -> dict[str, bytes]:
        """Return the range of each member, encoded."""
        each, more = divmod(self._partitions, len(members))
        found: dict[str, bytes] = {}
        begin = 0
        for number, name in enumerate(members):
            end = begin + each + (number < more)
            found[name] = wire.assignment(TOPIC, range(begin, end))
            begin = end
        return found


Group = ConsumerGroup | ClassicGroup
PROTOCOLS: dict[str, type[ConsumerGroup] | type[ClassicGroup]] = {
    "consumer": ConsumerGroup,
    "classic": ClassicGroup,
}
