"""The parts of the bench: each puts one kind of load on a side that has started.

`produce`: saturation by Java's ProducerPerformance. `rates`: fixed rates by librdkafka. `kill`: the
time without writes after kill -9 of a leader. The others read with one consumer: `tail` at the end
of a topic under a fixed rate, `written` once the producer has ended, `behind` five seconds behind a
producer until it has caught up, `far` behind four times what all caches of our cluster hold.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from gateway.config import CLUSTER_TAIL_CACHE_BYTES, ConnectionLimits
from ledger.node.config import NodeConfig
from tests.bench.cluster.meter import Meter
from tests.bench.cluster.sides import (
    BEFORE,
    KAFKA,
    OURS,
    SIDES,
    SYNCED_KAFKA,
    drop_page_cache,
    leaders,
    warm_page_cache,
)
from tests.bench.cluster.stage import Stage
from tests.bench.sides import producer_performance
from tests.peers.compose import commands
from tests.peers.processes import wait_until

SIZES, PARTITIONS = (100, 1024), (1, 6)
MANY = max(PARTITIONS)
PRODUCED_S, RATE_S, RATE_WARM_S = 8.0, 8.0, 3.0
QUICK_S = 3.0
WARM_RECORDS = {100: 200_000, 1024: 40_000}
WARM_ROUNDS_MAX, WARM_GAIN = 8, 1.05
WRITTEN_RECORDS = {100: 1_500_000, 1024: 200_000}
QUICK_SHARE = 5
BEHIND_S, BEHIND_PER_S = 5.0, {100: 40_000, 1024: 10_000}  # about half of saturation
CAUGHT_UP_S, BEHIND_S_MAX = 0.1, 25.0
TAIL_PER_S = {100: 20_000, 1024: 4_000}
FAR_TIMES, FAR_BYTES_MIN, FAR_BATCH_BYTES = 4, 256 << 20, 512 * 1024
KILL_PER_S, KILL_WARM_S, KILL_MORE_S, KILL_S_MAX = 200, 2.0, 3.0, 60.0


class Rate(NamedTuple):
    """Records offered at a fixed rate."""

    per_s: int
    record_bytes: int
    partitions: int
    settings: dict[str, Any]


# The lowest rate comes last: the others warm the servers up.
RATES = {
    "20000": Rate(20_000, 100, MANY, {}),
    "4000": Rate(4_000, 1024, MANY, {}),
    "400": Rate(400, 1024, 1, {"linger.ms": 0}),
}


def cache_bytes() -> int:
    """Return what all caches of our cluster hold for readers: every one counts, used or not."""
    names, bookie = list(commands()), NodeConfig()
    gateways, bookies = (
        sum(name.startswith(prefix) for name in names) for prefix in ("gateway-", "bookie-")
    )
    in_gateway = CLUSTER_TAIL_CACHE_BYTES + ConnectionLimits().read_ahead_bytes_max
    return gateways * in_gateway + bookies * (bookie.write_cache + bookie.read_ahead)


def produce(stage: Stage) -> None:
    """Saturate the side with one producer, six partitions."""
    for size in SIZES:
        topic = f"produce-{size}"
        stage.new_topic(topic, MANY)
        reached = _warmed_up(stage, topic, size)
        os.sync()  # what the load before left for the disk is not this one's burden
        records = int(reached * (QUICK_S if stage.quick else PRODUCED_S))
        meter = Meter(stage.side)
        reached, p50_ms, p99_ms = producer_performance(stage.side, topic, size, records)
        figures = meter.figures(size, records)
        latencies = {"p50_ms": p50_ms, "p99_ms": p99_ms}
        stage.add(f"produce {size}", {"records_per_s": reached, **latencies, **figures})


def _warmed_up(stage: Stage, topic: str, size: int) -> float:
    """Produce until no round is much faster than the ones before: three JVMs compile for long.

    Returns the records per second of the last round.
    """
    best, records = 0.0, WARM_RECORDS[size]
    for _ in range(1 if stage.quick else WARM_ROUNDS_MAX):
        reached, _, _ = producer_performance(stage.side, topic, size, records)
        if reached < WARM_GAIN * best:
            break
        best, records = max(best, reached), int(reached * PRODUCED_S)
    return reached


def _rate(stage: Stage, rate: Rate, topic: str) -> dict[str, Any]:
    return {
        "topic": topic,
        "partitions": rate.partitions,
        "rate": rate.per_s,
        "bytes": rate.record_bytes,
        "settings": rate.settings,
        "warm_s": RATE_WARM_S,
        "seconds": QUICK_S if stage.quick else RATE_S,
    }


def rates(stage: Stage) -> None:
    """Offer records at fixed rates, none of which saturates a side."""
    _idle(stage)
    for name, rate in RATES.items():
        topic = f"rate-{name}"
        stage.new_topic(topic, rate.partitions)
        with stage.driver("produce", **_rate(stage, rate, topic)) as driver:
            driver.wait("measuring")
            meter = Meter(stage.side, [driver.pid])
            driver.wait("measured")
            figures = meter.figures(rate.record_bytes, rate.per_s * _seconds(stage))
            stage.add(f"rate {name}", {**driver.report(), **figures})


def _seconds(stage: Stage) -> float:
    return QUICK_S if stage.quick else RATE_S


def _idle(stage: Stage) -> None:
    """Measure what all servers use without any load, as shares of one core."""
    meter, seconds = Meter(stage.side), QUICK_S
    threading.Event().wait(seconds)
    figures = meter.figures(1, 1)
    share = figures["cpu_us_per_record"] / 1e6 / seconds
    stage.add("idle", {"core_share": share, "memory_mb": figures["memory_mb"]})


def tail(stage: Stage) -> None:
    """(a) Follow the end of a topic under a fixed rate."""
    for size, partitions in itertools.product(SIZES, PARTITIONS):
        topic = f"tail-{size}-{partitions}"
        stage.new_topic(topic, partitions)
        rate = Rate(TAIL_PER_S[size], size, partitions, {})
        with stage.driver("follow", topic=topic, partitions=partitions) as follower:
            follower.wait("measuring")
            with stage.driver("produce", **_rate(stage, rate, topic)) as driver:
                driver.wait("measuring")
                meter = Meter(stage.side, [driver.pid, follower.pid])
                driver.wait("measured")
                figures = meter.figures(size, rate.per_s * _seconds(stage))
                offered = driver.report()["offered"]
            read = follower.report()
            found = {
                "records_per_s": read["in_time"] / _seconds(stage),
                "p50_ms": read["read_p50_ms"],
                "p99_ms": read["read_p99_ms"],
                "in_time_share": read["in_time"] / max(1, offered),
            }
            stage.add(f"tail {size}-{partitions}", {**found, **figures})


def _each_written(stage: Stage) -> Iterator[tuple[str, int, int]]:
    """Yield each topic to read, once it has just been filled or was before."""
    stage.reader()
    for size, partitions in itertools.product(SIZES, PARTITIONS):
        topic = f"written-{size}-{partitions}"
        records = WRITTEN_RECORDS[size] // (QUICK_SHARE if stage.quick else 1)
        if topic not in stage.filled:
            stage.fill(topic, partitions, size, records)
        yield topic, size, partitions


def written(stage: Stage) -> None:
    """(b) Read a topic when its producer has just ended."""
    for topic, size, partitions in _each_written(stage):
        stage.add(f"written {size}-{partitions}", stage.read(topic, partitions, size))


def behind(stage: Stage) -> None:
    """(c) Start behind a producer at half of saturation, and read until caught up."""
    reader = stage.reader()
    for size, partitions in itertools.product(SIZES, PARTITIONS):
        topic, per_s = f"behind-{size}-{partitions}", BEHIND_PER_S[size]
        stage.new_topic(topic, partitions)
        rate = Rate(per_s, size, partitions, {})
        asked = {**_rate(stage, rate, topic), "warm_s": 0.5, "seconds": BEHIND_S + BEHIND_S_MAX}
        with stage.driver("produce", **asked) as driver:
            driver.wait("measuring")
            threading.Event().wait(BEHIND_S)
            lag = int(per_s * CAUGHT_UP_S)
            meter = Meter(stage.side, [driver.pid, reader.pid])
            read = reader.read(topic, partitions, 0, lag=lag, seconds_max=BEHIND_S_MAX)
            figures = stage.read_figures(meter, read, size)
        stage.add(f"behind {size}-{partitions}", figures)


def far(stage: Stage) -> None:
    """(d) Read topics behind which more was written than all caches hold."""
    topics = list(_each_written(stage))
    far_bytes = max(FAR_TIMES * cache_bytes(), FAR_BYTES_MIN)
    size = max(SIZES)
    if "filler" not in stage.filled:
        stage.fill("filler", MANY, size, far_bytes // size, FAR_BATCH_BYTES)
    for cell, make in (("far", warm_page_cache), ("cold", drop_page_cache)):
        make(stage.side)
        for topic, record_bytes, partitions in topics:
            figures = stage.read(topic, partitions, record_bytes)
            stage.add(f"{cell} {record_bytes}-{partitions}", figures)


def kill(stage: Stage) -> None:
    """Kill -9 of a leader under load; the longest time without an acknowledgement."""
    from confluent_kafka import Producer

    stage.new_topic("kill", 1)
    settings = {"bootstrap.servers": stage.side.bootstrap, "acks": "all", "log_level": 0}
    producer = Producer({**settings, "linger.ms": 0, "message.timeout.ms": 120_000})
    seen: list[tuple[float, float]] = []  # sent, acknowledged

    def on_delivery(sent_s: float, error: Any, _: Any) -> None:
        if error is None:
            seen.append((sent_s, time.monotonic()))

    def offer(enough: Callable[[], bool]) -> bool:
        now_s = time.monotonic()
        producer.produce("kill", b"record", partition=0, on_delivery=partial(on_delivery, now_s))
        producer.poll(0)
        return enough()

    def for_seconds(count: float) -> Callable[[], bool]:
        ends_s = time.monotonic() + count
        return lambda: offer(lambda: time.monotonic() > ends_s)

    wait_until(for_seconds(KILL_WARM_S), "the writes before", KILL_S_MAX, pause_s=1 / KILL_PER_S)
    stage.side.kill_listener(leaders(stage.side, "kill")[0])
    killed_s = time.monotonic()
    wait_until(
        lambda: offer(lambda: bool(seen) and seen[-1][0] > killed_s + KILL_MORE_S),
        "writes after kill -9 of the leader",
        KILL_S_MAX,
        pause_s=1 / KILL_PER_S,
    )
    stage.add("kill", {"pause_s": _longest_pause_s(seen, killed_s)})


def _longest_pause_s(seen: list[tuple[float, float]], killed_s: float) -> float:
    times = sorted(each for _, each in seen)
    pairs = itertools.pairwise(times)
    return max(later - earlier for earlier, later in pairs if later > killed_s)


class Part(NamedTuple):
    """A load and the sides that it runs on."""

    run: Callable[[Stage], None]
    sides: tuple[str, ...]


_SYNCED = (OURS, BEFORE, SYNCED_KAFKA, KAFKA)
_ONE_KAFKA = (OURS, BEFORE, KAFKA)
PARTS = {
    "produce": Part(produce, SIDES),
    "rates": Part(rates, _SYNCED),
    "tail": Part(tail, _ONE_KAFKA),
    "written": Part(written, _ONE_KAFKA),
    "behind": Part(behind, _ONE_KAFKA),
    "far": Part(far, _ONE_KAFKA),
    "kill": Part(kill, _ONE_KAFKA),
}
