"""Clients without patience: they try again at once, so what they measure is the server's.

`probe` writes, `watch` looks at watermarks and Metadata of every node, and a `Witness` keeps
sockets to one node and knows every answer that came out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence

from tests.histories.history import INFO, OK, Key, place_of
from tests.histories.recorder import Recorder
from tests.histories.wire import (
    EARLIEST,
    INIT_PRODUCER_ID,
    LATEST,
    LIST_OFFSETS,
    OFFSET_FETCH,
    PRODUCE,
    Answered,
    Peer,
    Peers,
    Topology,
    list_offsets_body,
    offset_fetch_body,
    produce_body,
    read_topology,
)

Address = tuple[str, int]
CLIENT = "by hand plain"
LOOK_S_MAX = 1.0  # for one answer of one node; then the next one is asked
AGAIN_S = 0.02
DRAIN_TURNS, DRAIN_S = 10, 0.05  # looks at sockets in which nothing new can arrive
GONE = (OSError, TimeoutError)


class Map:
    """Where the leaders are, as any node says; asked again when somebody was wrong."""

    def __init__(self, bootstrap: Sequence[Address], topic: str) -> None:
        self._bootstrap = list(bootstrap)
        self._topic = topic
        self._known: Topology | None = None
        self._turn = 0

    def forget(self) -> None:
        self._known = None

    async def leader(self, key: Key, peers: Peers) -> tuple[Address, int] | None:
        """(where, node id); None when nobody says. Another node is asked the next time."""
        if self._known is None:
            self._turn += 1
            at = self._bootstrap[self._turn % len(self._bootstrap)]
            with contextlib.suppress(*GONE):
                found = await read_topology(await peers.at(*at), self._topic, LOOK_S_MAX)
                self._known = self._known or found
        if self._known is None:
            return None
        node = self._known.partitions.get(key, (-1, -1, ()))[0]
        address = self._known.nodes.get(node)
        return None if address is None else (address, node)


async def probe(
    recorder: Recorder,
    bootstrap: Sequence[Address],
    key: Key,
    process: str,
    stop: asyncio.Event,
    *,
    pause_s: float,
) -> None:
    """Writes a record, waits for its answer, writes the next one; a failure is not repeated."""
    peers, places = Peers(), Map(bootstrap, place_of(key)[0])
    while not stop.is_set():
        where = await places.leader(key, peers)
        if where is None:
            places.forget()
            await asyncio.sleep(AGAIN_S)
            continue
        start_s, value = recorder.now_s(), recorder.value()
        code, offset = -1, -1
        with contextlib.suppress(*GONE):
            peer = await peers.at(*where[0])
            answer = await peer.ask(PRODUCE, produce_body(key, [value]), LOOK_S_MAX)
            row = answer.responses[0].partition_responses[0]
            code, offset = row.error_code.value, row.base_offset
        if code == 0:
            recorder.add(process, CLIENT, "send", OK, start_s, [(key, value, offset)])
            await asyncio.sleep(pause_s)
            continue
        recorder.add(process, CLIENT, "send", INFO, start_s, [(key, value, None)])
        places.forget()
        await asyncio.sleep(AGAIN_S)
    await peers.close()


async def watch(
    recorder: Recorder,
    bootstrap: Sequence[Address],
    keys: Sequence[Key],
    process: str,
    stop: asyncio.Event,
    *,
    pause_s: float,
) -> None:
    """Asks every node for Metadata, and every leader that it names for its watermarks."""
    peers = Peers()
    topic = place_of(keys[0])[0]
    while not stop.is_set():
        for address in bootstrap:
            start_s = recorder.now_s()
            try:
                topology = await read_topology(await peers.at(*address), topic, LOOK_S_MAX)
            except GONE:
                await asyncio.sleep(AGAIN_S)
                continue
            told = {key: row[:2] for key, row in topology.partitions.items()}
            node = f"{address[0]}:{address[1]}"
            recorder.add(process, "by hand", "metadata", OK, start_s, (node, told))
            await _look(recorder, peers, topology, process)
            await asyncio.sleep(pause_s)
    await peers.close()


async def _look(recorder: Recorder, peers: Peers, topology: Topology, process: str) -> None:
    """One look at all partitions, each at its leader."""
    led: dict[int, list[Key]] = {}
    for key, (leader, _, _) in topology.partitions.items():
        led.setdefault(leader, []).append(key)
    for node, keys in led.items():
        if node not in topology.nodes:
            continue
        start_s = recorder.now_s()
        try:
            peer = await peers.at(*topology.nodes[node])
            async with asyncio.timeout(LOOK_S_MAX):
                first, last = await asyncio.gather(
                    peer.send(LIST_OFFSETS, list_offsets_body(keys, EARLIEST)),
                    peer.send(LIST_OFFSETS, list_offsets_body(keys, LATEST)),
                )
        except GONE:
            continue
        starts = {key: offset for key, offset, _ in _offsets(first)}
        said = {key: (offset, starts.get(key, -1), epoch) for key, offset, epoch in _offsets(last)}
        recorder.add(process, f"by hand, node {node}", "look", OK, start_s, said)


def _offsets(answered: Answered) -> Iterator[tuple[Key, int, int]]:
    """(key, offset, leader epoch) of each partition that was answered without an error."""
    for topic in answered.body.topics:
        for row in topic.partitions:
            if row.error_code.value == 0:
                yield f"{topic.name}:{row.partition_index}", row.offset, row.leader_epoch


async def ask_committed(
    recorder: Recorder,
    bootstrap: Sequence[Address],
    keys: Sequence[Key],
    groups: Sequence[str],
    process: str,
    stop: asyncio.Event,
    *,
    pause_s: float,
) -> None:
    """Asks every node what each group has committed; whoever answers without an error is believed.

    So one who is not the coordinator, or has not loaded the group, must not answer.
    """
    peers = Peers()
    for address, group in itertools.cycle(itertools.product(bootstrap, groups)):
        if stop.is_set():
            break
        start_s = recorder.now_s()
        found: dict[Key, int] = {}
        with contextlib.suppress(*GONE):
            peer = await peers.at(*address)
            body = offset_fetch_body(group, keys)
            found = _committed(await peer.ask(OFFSET_FETCH, body, LOOK_S_MAX))
        if found:
            node = f"by hand, node {address[1]}"
            recorder.add(process, node, "fetch", OK, start_s, (group, found))
        await asyncio.sleep(pause_s)
    await peers.close()


def _committed(body) -> dict[Key, int]:
    """What was answered without an error."""
    if body.error_code.value != 0:
        return {}
    return {
        f"{topic.name}:{row.partition_index}": row.committed_offset
        for topic in body.topics
        for row in topic.partitions
        if row.error_code.value == 0
    }


class Witness:
    """Sockets to one node, a plain and an idempotent producer and a reader, all asking at once.

    Requests go on while the node is stopped; they wait in its socket. What it answers is counted
    from the moment in which it stood still and everything it had said before was read.
    """

    def __init__(self, recorder: Recorder, address: Address, keys: Sequence[Key], group: str):
        self._recorder = recorder
        self._address = address
        self._keys = list(keys)
        self._group = group
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._peers: list[Peer] = []
        self._counting = False
        self._stopped_s = 0.0
        self.acks: list[tuple[Key, int]] = []  # acknowledged by it after it was stopped
        self.late: list[tuple[Key, int]] = []  # of those: asked before, so perhaps decided before
        self.reads: list[str] = []  # what else it said as an owner or coordinator
        self.asked = 0  # requests that waited for it when it went on
        self.answers = 0  # all answers after it was stopped, refusals too

    async def start(self, pause_s: float = 0.05) -> bool:
        """Begin to write and to read. Returns False if the node ended a connection meanwhile."""
        try:
            await self._begin(pause_s)
        except GONE:
            return False
        return True

    async def _begin(self, pause_s: float) -> None:
        for number, key in enumerate(self._keys):
            for idempotent in (False, True):
                peer = await Peer(*self._address).connect()
                self._peers.append(peer)
                identity = await peer.ask(
                    INIT_PRODUCER_ID,
                    {
                        "transactional_id": None,
                        "transaction_timeout": 60_000,
                        "producer_id": -1,
                        "producer_epoch": -1,
                    },
                )
                who = (identity.producer_id, identity.producer_epoch) if idempotent else (-1, -1)
                name = f"witness-{id(self) % 10_000}-{number}-{'i' if idempotent else 'p'}"
                writing = self._write(peer, key, name, who, pause_s)
                self._tasks.append(asyncio.create_task(writing))
        peer = await Peer(*self._address).connect()
        self._peers.append(peer)
        self._tasks.append(asyncio.create_task(self._ask_on(peer, pause_s)))

    async def _write(
        self, peer: Peer, key: Key, process: str, who: tuple[int, int], pause_s: float
    ) -> None:
        client = "by hand idempotent" if who[0] >= 0 else CLIENT
        sequence = 0
        while not (self._stop.is_set() or peer.closed):
            value, start_s = self._recorder.value(), self._recorder.now_s()
            identity = {"producer": who[0], "epoch": who[1]}
            identity["sequence"] = sequence if who[0] >= 0 else -1
            sequence += 1
            sent = peer.send(PRODUCE, produce_body(key, [value], **identity))
            sent.add_done_callback(
                lambda sent, value=value, start_s=start_s: self._produced(
                    sent, key, value, start_s, process, client
                )
            )
            await asyncio.sleep(pause_s)

    def _produced(self, sent, key: Key, value: int, start_s: float, process: str, client: str):
        result, offset = INFO, None
        if not sent.cancelled() and sent.exception() is None:
            row = sent.result().body.responses[0].partition_responses[0]
            if row.error_code.value == 0:
                result, offset = OK, row.base_offset
            if self._counting:
                self._count(result == OK, (key, value), start_s)
        self._recorder.add(process, client, "send", result, start_s, [(key, value, offset)])

    def _count(self, acknowledged: bool, record: tuple[Key, int], start_s: float) -> None:
        """An answer came after the node was stopped."""
        self.answers += 1
        if acknowledged:
            self.acks.append(record)
        if acknowledged and start_s < self._stopped_s:
            self.late.append(record)

    async def _ask_on(self, peer: Peer, pause_s: float) -> None:
        while not (self._stop.is_set() or peer.closed):
            body = list_offsets_body(self._keys, LATEST)
            peer.send(LIST_OFFSETS, body).add_done_callback(self._listed)
            body = offset_fetch_body(self._group, self._keys)
            peer.send(OFFSET_FETCH, body).add_done_callback(self._fetched)
            await asyncio.sleep(2 * pause_s)

    def _listed(self, sent) -> None:
        if not self._counting or sent.cancelled() or sent.exception() is not None:
            return
        self.answers += 1
        self.reads += [f"ListOffsets {key}: {offset}" for key, offset, _ in _offsets(sent.result())]

    def _fetched(self, sent) -> None:
        if not self._counting or sent.cancelled() or sent.exception() is not None:
            return
        self.answers += 1
        self.reads += [f"OffsetFetch {at}" for at in _committed(sent.result().body).items()]

    async def stopped(self) -> None:
        """Read the answers that the node sent before it was stopped; later ones count.

        They are in our socket buffers. One wait is not enough: after a stall of this process its
        timer fires before the answers are parsed.
        """
        self._stopped_s = self._recorder.now_s()
        for _ in range(DRAIN_TURNS):
            await asyncio.sleep(DRAIN_S)
        self._counting = True

    @property
    def connected(self) -> bool:
        """Return whether the node has ended none of the connections."""
        return not any(peer.closed for peer in self._peers)

    def no_more(self) -> None:
        """Nothing is asked any more; call before the node goes on."""
        self._stop.set()
        self.asked = sum(len(peer.unanswered()) for peer in self._peers)

    async def end(self, timeout_s: float = 5.0) -> None:
        """All answers are in, or the node has closed its connections."""
        self._stop.set()
        await asyncio.gather(*self._tasks)
        pending = [answer for peer in self._peers for answer in peer.unanswered()]
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)
        for peer in self._peers:
            await peer.close()
