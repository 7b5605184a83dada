"""The load that is judged: stock clients of two kinds and some by hand, all on one topic.

aiokafka and librdkafka each send (with and without idempotence), read by assignment, read in one
group together, and commit and fetch offsets; by hand come a writer for each partition, who tries
again at once, and one who looks at every node. It is slow on purpose: a few hundred records a
second, so that clusters of many processes are judged and not the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.histories import raw_clients, with_aiokafka, with_confluent
from tests.histories.history import FINAL, Key, key_of
from tests.histories.raw_clients import Address
from tests.histories.recorder import Recorder
from tests.histories.wire import (
    LATEST,
    LIST_OFFSETS,
    Peers,
    Topology,
    list_offsets_body,
    read_topology,
)

GROUP = "readers"
OFFSET_GROUPS = ("offsets-1", "offsets-2")  # nobody is a member of these
PAUSE_S = 0.02  # between two records of one stock producer
PROBE_S = 0.04
LOOK_S = 0.1
COMMIT_S = 0.04
END_S_MAX = 150.0
CREATE_S_MAX = 120.0
_FINAL = (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_CONFIG)


def make_topic(
    bootstrap: str,
    topic: str,
    partitions: int,
    copies: int,
    config: Mapping[str, str] | None = None,
) -> list[Key]:
    """Create the topic; return its keys. Raises KafkaException if it exists, or cannot be created.

    An answer may be lost when a gateway stood still, and bookies may still be starting.
    """
    wanted = NewTopic(topic, partitions, copies, config=dict(config or {}))
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    until_s = time.monotonic() + CREATE_S_MAX
    for tries in itertools.count():
        [created] = admin.create_topics([wanted]).values()
        try:
            created.result(CREATE_S_MAX)
            break
        except KafkaException as refused:
            if tries and refused.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                break  # an answer was lost
            if refused.args[0].code() in _FINAL or time.monotonic() > until_s:
                raise
            threading.Event().wait(0.2)
    return [key_of(topic, number) for number in range(partitions)]


class Workload:
    """All clients on one topic. `addresses` are all nodes, running or not."""

    def __init__(
        self,
        recorder: Recorder,
        addresses: Sequence[Address],
        keys: Sequence[Key],
        *,
        groups: bool = True,
        pace: float = 1.0,
    ) -> None:
        self.recorder = recorder
        self.addresses = list(addresses)
        self.bootstrap = ",".join(f"{host}:{port}" for host, port in addresses)
        self.keys = list(keys)
        self._groups = groups
        self._pace = pace  # pauses are that much longer
        self._topic = keys[0].rpartition(":")[0]
        self._stops: dict[str, list[Callable[[], None]]] = {"write": [], "read": []}
        self._tasks: dict[str, list[asyncio.Task[Any]]] = {"write": [], "read": []}
        self._brief: set[asyncio.Task[Any]] = set()  # readers that may end before the others

    async def start(self) -> None:
        """Everybody works, or is about to."""
        both = (self.recorder, self.bootstrap)
        pause_s, pace = PAUSE_S * self._pace, self._pace
        for idempotent in (True, False):
            word = "idempotent" if idempotent else "plain"
            options: dict[str, Any] = {"idempotent": idempotent, "pause_s": pause_s}
            self._loop("write", with_aiokafka.send, *both, self.keys, f"a-{word}", **options)
            self._thread("write", with_confluent.send, *both, self.keys, f"l-{word}", **options)
        by_hand = (self.recorder, self.addresses)
        for key in self.keys:
            probe = (*by_hand, key, f"probe-{key}")
            self._loop("write", raw_clients.probe, *probe, pause_s=PROBE_S * pace)
        self._loop("read", raw_clients.watch, *by_hand, self.keys, "w", pause_s=LOOK_S * pace)
        self._loop("read", with_aiokafka.read, *both, self.keys, "a-assigned")
        self._thread("read", with_confluent.read, *both, self.keys, "l-assigned")
        if self._groups:
            self._start_groups()

    def _start_groups(self) -> None:
        both = (self.recorder, self.bootstrap)
        member = (*both, self._topic, GROUP)
        self._loop("read", with_aiokafka.read_in_group, *member, "a-member")
        self._thread("read", with_confluent.read_in_group, *member, "l-member")
        options = {"pause_s": COMMIT_S * self._pace}
        asked = (self.recorder, self.addresses, self.keys, (GROUP, *OFFSET_GROUPS), "o")
        self._loop("read", raw_clients.ask_committed, *asked, **options)
        for group in OFFSET_GROUPS:
            place = (*both, self.keys[:2], group)
            named = f"-{group}"
            self._loop("write", with_aiokafka.commit_and_fetch, *place, f"a{named}", **options)
            self._thread("write", with_confluent.commit_and_fetch, *place, f"l{named}", **options)

    def _loop(self, role: str, client: Callable[..., Any], *words: Any, **options: Any) -> None:
        stop = asyncio.Event()
        self._stops[role].append(stop.set)
        self._tasks[role].append(asyncio.create_task(client(*words, stop, **options)))

    def _thread(self, role: str, client: Callable[..., Any], *words: Any, **options: Any) -> None:
        stop = threading.Event()
        self._stops[role].append(stop.set)
        running = asyncio.to_thread(client, *words, stop, **options)
        self._tasks[role].append(asyncio.create_task(running))

    async def read_also(self, keys: Sequence[Key], name: str) -> Callable[[], None]:
        """Let one more reader of each kind begin at the start of these keys.

        Returns what ends them; it must be called in the loop.
        """
        before = len(self._stops["read"])
        both = (self.recorder, self.bootstrap, keys)
        self._loop("read", with_aiokafka.read, *both, f"a-{name}")
        self._thread("read", with_confluent.read, *both, f"l-{name}")
        stops = self._stops["read"][before:]
        self._brief |= set(self._tasks["read"][-len(stops) :])

        def stop() -> None:
            for each in stops:
                each()

        return stop

    def fail_if_ended(self) -> None:
        """A client ends by itself only where it has failed."""
        for task in (*self._tasks["write"], *self._tasks["read"]):
            if task.done():
                task.result()
                if task not in self._brief:
                    raise AssertionError("a client ended by itself")

    async def end(self) -> None:
        """Writers end first; then everything there is was read by a reader of its own."""
        await self._end("write")
        ends = await self._ends()
        stop = asyncio.Event()
        words = (self.recorder, self.bootstrap, self.keys, f"{FINAL}-aiokafka", stop)
        async with asyncio.timeout(END_S_MAX):
            await with_aiokafka.read(*words, ends={key: end for key, end in ends.items() if end})
        await self._end("read")

    def stop(self) -> None:
        """Nobody works any more, soon: threads do not end otherwise."""
        for stop in (*self._stops["write"], *self._stops["read"]):
            stop()

    async def _end(self, role: str) -> None:
        for stop in self._stops[role]:
            stop()
        async with asyncio.timeout(END_S_MAX):
            await asyncio.gather(*self._tasks[role])

    async def _ends(self) -> dict[Key, int]:
        """The end of each partition, asked until its leader says it."""
        peers = Peers()
        ends: dict[Key, int] = {}
        async with asyncio.timeout(END_S_MAX):
            while len(ends) < len(self.keys):
                await self._ask_ends(peers, ends)
        await peers.close()
        return ends

    async def _ask_ends(self, peers: Peers, ends: dict[Key, int]) -> None:
        for host, port in self.addresses:
            try:
                topology = await read_topology(await peers.at(host, port), self._topic)
                ends |= await self._told_ends(peers, topology, set(self.keys) - set(ends))
            except (OSError, TimeoutError, KeyError):
                await asyncio.sleep(0.1)

    async def _told_ends(self, peers: Peers, topology: Topology, keys: set[Key]) -> dict[Key, int]:
        ends: dict[Key, int] = {}
        for key in keys:
            peer = await peers.at(*topology.nodes[topology.partitions[key][0]])
            answer = await peer.ask(LIST_OFFSETS, list_offsets_body([key], LATEST))
            row = answer.topics[0].partitions[0]
            if row.error_code.value == 0:
                ends[key] = row.offset
        return ends
