"""Many partitions on one gateway; then another one takes all of them over."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer

from tests.bench.scale_cluster import Bar, Cluster, megabytes, seconds, spread
from tests.bench.scale_wire import METADATA, Wire, metadata_of
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import wait_until

PER_TOPIC = 100
METADATA_ROUNDS = 30
TOPICS_WATCHED_MAX = 2  # looking is work for the gateway that takes over
LOOK_S = 0.2
AGAIN_S = 0.05
TOPIC_S_MAX = 60.0
ASKED_MAX, ASKED_AT_ONCE = 200, 4  # partitions that are asked for while all are due
REFUSED_S_MAX = 0.5  # a partition that is not claimed is refused sooner
WRITTEN_TO_MAX, WRITTEN_S_MAX = 100, 60.0  # partitions that get a record after the takeover
_EXISTS = 36
_NOT_YET = {3, 5, 6, 7, 9, 78}  # unknown, no leader, not the leader, timed out, ...

Key = tuple[str, int]


async def measure(
    directory: Path, count: int, budget_s: float, *, unused: bool, tree: Path | None = None
) -> dict[str, Any]:
    """Figures of one size. `budget_s` bounds each of its parts.

    Each partition has got a record before its owner is killed, so that whoever takes it over has a
    segment to recover; `unused` ones have none.
    """
    with Cluster(directory, tree=tree) as cluster:
        first = cluster.gateway()
        async with Wire(first.bootstrap) as wire:
            assert await wire.create("warm", 1, 3, 60_000) == 0
            await _led_by(wire, 0, 1, time.monotonic() + budget_s)
            empty_mb, _ = megabytes(first)
            began_s = time.monotonic()
            keys = await _create(wire, count, began_s + budget_s)
            created_s = time.monotonic() - began_s
            await _led_by(wire, 0, len(keys) + 1, began_s + 2 * budget_s)
            pss_mb, rss_mb = megabytes(first)
            metadata_ms = await _metadata_ms(wire)
        began_s = time.monotonic()
        used = 0 if unused else await asyncio.to_thread(_write, first, keys, budget_s)
        used_s = time.monotonic() - began_s
        used_mb, _ = megabytes(first)
        figures = {
            "partitions": len(keys),
            "created_per_s": round(len(keys) / created_s, 1),
            "empty_mb": empty_mb,
            "held_mb": pss_mb,
            "held_rss_mb": rss_mb,
            "metadata_p50_ms": metadata_ms,
            "used": used,
            "first_writes_per_s": round(used / used_s),
            "used_mb": used_mb,
            "open_ledgers": await cluster.open_ledgers(),
        }
        second = cluster.gateway()
        async with Wire(second.bootstrap) as wire:
            of_first = await _leaders(wire, 0)
            first.kill()
            taken = await _take_over(wire, of_first, time.monotonic() + budget_s)
        began_s = time.monotonic()
        sample = of_first[:: -(-len(of_first) // WRITTEN_TO_MAX) or 1]
        written = await asyncio.to_thread(_write, second, sample, WRITTEN_S_MAX)
        assert written == len(sample), f"{written} of {len(sample)} records were acknowledged"
        figures["written_s"] = round(time.monotonic() - began_s, 3)
        loaded_mb, _ = megabytes(second)
        return {**figures, **taken, "loaded_mb": loaded_mb}


async def _create(wire: Wire, count: int, until_s: float) -> list[Key]:
    """So many partitions in topics of a hundred, or as many as could be made in the time."""
    sizes = [PER_TOPIC] * (count // PER_TOPIC) + ([count % PER_TOPIC] if count % PER_TOPIC else [])
    bar = Bar(f"{count:,} partitions: create", count)
    keys: list[Key] = []

    async def create(number: int, _: int) -> None:
        topic, size = f"topic-{number:04d}", sizes[number]
        give_up_s = time.monotonic() + TOPIC_S_MAX
        while (code := await wire.create(topic, size, 3, 60_000)) not in (0, _EXISTS):
            assert code in _NOT_YET and time.monotonic() < give_up_s, f"{topic}: error {code}"
            await asyncio.sleep(AGAIN_S)
        keys.extend((topic, index) for index in range(size))
        bar.show(len(keys))

    await spread(range(len(sizes)), create, at_once=2, until_s=until_s)
    return sorted(keys)


async def _leaders(wire: Wire, node_id: int, topics: Sequence[str] | None = None) -> list[Key]:
    """Partitions (of all topics, or of these) that this gateway leads, as `wire`'s says."""
    answer = await wire.metadata(topics)
    return sorted(
        (topic.name, row.partition_index)
        for topic in answer.topics
        for row in topic.partitions
        if row.leader_id == node_id and row.leader_epoch >= 0
    )


async def _led_by(wire: Wire, node_id: int, count: int, until_s: float) -> None:
    bar = Bar(f"{count:,} partitions: open", count)
    while (led := len(await _leaders(wire, node_id))) < count:
        bar.show(led)
        assert time.monotonic() < until_s, f"{led} of {count} partitions are led"
        await asyncio.sleep(LOOK_S)
    bar.show(count)


async def _metadata_ms(wire: Wire) -> float:
    """Of all topics, from the question to the last byte of the answer."""
    took_s: list[float] = []
    for _ in range(METADATA_ROUNDS):
        asked_s = time.monotonic()
        await wire.frame(METADATA, metadata_of(None))
        took_s.append(time.monotonic() - asked_s)
    return round(median(took_s) * 1000, 2)


async def _take_over(wire: Wire, keys: list[Key], until_s: float) -> dict[str, float]:
    """The gateway answers for every partition as its leader. When each was led: by a sample."""
    killed_s = time.monotonic()
    asking = asyncio.ensure_future(_ask_for_some(wire.address, keys, until_s))
    led_s = await _led_again(wire, keys, killed_s, until_s)
    asked = await asking
    left = set(keys)
    while left and time.monotonic() < until_s:
        for topic, indexes in _by_topic(left).items():
            answers = await wire.ends({topic: indexes})
            strange = {code for code, _ in answers.values()} - {0} - _NOT_YET
            assert not strange, f"{topic}: errors {strange}"
            left.difference_update(key for key, (code, _) in answers.items() if code == 0)
        await asyncio.sleep(AGAIN_S)
    figures = (
        {f"takeover_{name}": value for name, value in seconds(led_s.values()).items()}
        if led_s
        else {}
    )
    figures["takeover_last_s"] = round(time.monotonic() - killed_s, 3)  # of all, not of the sample
    return {"of": len(keys), "taken_over": len(keys) - len(left), **figures, **asked}


async def _ask_for_some(address: str, keys: Sequence[Key], until_s: float) -> dict[str, float]:
    """How long those took that were asked for while the others were due, from the claim on."""
    some = random.Random(1).sample(keys, min(len(keys), ASKED_MAX))
    took_s: list[float] = []

    async def ask(key: Key, _: int) -> None:
        async with Wire(address) as wire:
            took_s.append(await _answered_s(wire, key))

    await spread(some, ask, at_once=ASKED_AT_ONCE, until_s=until_s)
    ordered = sorted(took_s)
    return {
        "asked": len(ordered),
        "asked_p50_s": round(ordered[len(ordered) // 2], 3),
        "asked_p99_s": round(ordered[len(ordered) * 99 // 100], 3),
    }


async def _answered_s(wire: Wire, key: Key) -> float:
    """Seconds from the first request after the claim: one before it is refused at once."""
    claimed_s = 0.0
    topic, index = key
    while True:
        sent_s = time.monotonic()
        code, _ = (await wire.ends({topic: [index]}))[key]
        now_s = time.monotonic()
        waited = now_s - sent_s > REFUSED_S_MAX
        if code == 0 or waited:
            claimed_s = claimed_s or sent_s
        if code == 0:
            return now_s - claimed_s
        assert code in _NOT_YET, f"{key}: error {code}"
        await asyncio.sleep(AGAIN_S)


async def _led_again(
    wire: Wire, keys: list[Key], killed_s: float, until_s: float
) -> dict[Key, float]:
    """When partitions of some topics got a leader again, in seconds after the kill."""
    topics = sorted({topic for topic, _ in keys})
    topics = topics[:: -(-len(topics) // TOPICS_WATCHED_MAX)]
    watched = [key for key in keys if key[0] in topics]
    bar = Bar(f"{len(watched):,} partitions: led again", len(watched))
    led_s: dict[Key, float] = {}
    while len(led_s) < len(watched) and time.monotonic() < until_s:
        leaders = await _leaders(wire, 1, topics)
        now_s = time.monotonic() - killed_s
        led_s = dict.fromkeys(leaders, now_s) | led_s
        bar.show(len(led_s))
        await asyncio.sleep(LOOK_S)
    return led_s


def _by_topic(keys: Iterable[Key]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in sorted(keys):
        found.setdefault(topic, []).append(index)
    return found


def _write(gateway: ClusterGateway, keys: Sequence[Key], budget_s: float) -> int:
    """A stock producer has a record in each of the partitions; how many were acknowledged."""
    bar, acknowledged = Bar(f"{len(keys):,} partitions: first record", len(keys)), list[int]()
    producer = Producer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "queue.buffering.max.messages": 1_000_000,
            "message.timeout.ms": int(budget_s * 1000),
            "log_level": 0,
        }
    )

    def delivered(error: object, _: object) -> None:
        if error is None:
            acknowledged.append(1)
            bar.show(len(acknowledged))

    for topic, index in keys:
        producer.produce(topic, b"one", partition=index, on_delivery=delivered)
    wait_until(lambda: producer.flush(0.1) == 0, "the records' answers", budget_s + 10.0)
    return len(acknowledged)
