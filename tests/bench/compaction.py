"""Log compaction beside Apache Kafka 4.3: the same records, the same disk, one after the other.

    make bench-compaction
    make bench-compaction PARTS=none-1024 PAIR=nosync RUNS=1 MEGABYTES=256
    python -m tests.bench.compaction --parts zstd-100 --quick --runs 1

Random updates of 10^5 and 10^6 keys are written to a topic whose `min.compaction.lag.ms` keeps the
cleaner away. Then the lag is set to 0, and the time until all completed segments are clean counts.
Meanwhile a producer sends small records to another topic, one at a time. A part is a codec and the
size of the values. Prints the figures of the last run as ours / Apache Kafka's = worst ratio, and
one line of JSON for each part. CPU is in seconds per GB, without that of the producer;
`p99_ratio` is the producer's p99 while the cleaner works / before.
"""

from __future__ import annotations

import os
import random
import sys
import time
from functools import partial

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin import ResourceType as Kind

from tests.bench import beside
from tests.bench.beside import Part, Stage
from tests.bench.compaction_sides import Cleaned, cleaned
from tests.bench.sides import create_topic
from tests.peers.broker import Broker

CODECS = ("none", "zstd")
SIZES = (100, 1024)
KEYS = (100_000, 1_000_000)
MEGABYTES, QUICK_MEGABYTES, QUICK_KEYS = 1024, 32, (100_000,)
SEGMENT_BYTES, QUICK_SEGMENT_BYTES = 64 << 20, 4 << 20
WARM_UP_MEGABYTES = 16
KEY_BYTES = 10
UNACKNOWLEDGED_MAX = 20_000
IDLE_S, QUICK_IDLE_S = 10.0, 2.0
PAUSE_S, LOOK_S = 0.005, 0.1
CLEAN_S_MAX, SECONDS_MAX = 900.0, 60.0
LAG_MS = str(10 * 86_400_000)


def alter(broker: Broker, kind: Kind, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(SECONDS_MAX)


def delete(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for done in admin.delete_topics([topic]).values():
        done.result(SECONDS_MAX)


def fill(broker: Broker, topic: str, size: int, keys: int, records: int, codec: str) -> None:
    """Write random updates. Half of each value can be compressed."""
    draw = random.Random(7)
    pool = draw.randbytes(1 << 20).hex().encode()
    settings = {"linger.ms": 20, "batch.size": 256 * 1024, "compression.type": codec}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, **settings})
    for number in range(records):
        at, key = draw.randrange(len(pool) - size), b"%010d" % draw.randrange(keys)
        producer.produce(topic, pool[at : at + size], key)
        producer.poll(0)
        if number % UNACKNOWLEDGED_MAX == 0 and producer.flush(SECONDS_MAX):
            break
    if producer.flush(SECONDS_MAX):
        raise RuntimeError(f"{broker.name} did not acknowledge all records")


class Sender:
    """A producer of small records that waits for each acknowledgement, about 100 a second."""

    def __init__(self, broker: Broker, topic: str) -> None:
        settings = {"linger.ms": 0, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        self._topic = topic

    def send_for(self, seconds: float) -> list[float]:
        """Return how long the records took that were sent in this time."""
        took: list[float] = []
        end = time.monotonic() + seconds
        while (started := time.monotonic()) < end:
            self._producer.produce(self._topic, b"x" * 100)
            if self._producer.flush(SECONDS_MAX):
                raise RuntimeError("a record was not acknowledged")
            took.append(time.monotonic() - started)
            self._producer.poll(PAUSE_S)  # no event is due: this is a pause
        return took


def p99_ms(took: list[float]) -> float:
    return 1000 * sorted(took)[int(len(took) * 0.99)]


def compaction(codec: str, size: int, stage: Stage) -> None:
    """Clean a topic of random updates, for each number of keys."""
    create_topic(stage.broker, "beside", 1)
    broker_id = "1" if stage.side == "kafka" else "0"
    alter(stage.broker, Kind.BROKER, broker_id, "log.cleaner.backoff.ms", "100")
    # Until the cleaner sees the new backoff, and Kafka's is compiled. This does not count.
    _clean(stage, "warm-up", (size, KEYS[0], codec), (WARM_UP_MEGABYTES, QUICK_SEGMENT_BYTES))
    megabytes = stage.megabytes or (QUICK_MEGABYTES if stage.quick else MEGABYTES)
    segment_bytes = SEGMENT_BYTES if megabytes > 4 * SEGMENT_BYTES >> 20 else QUICK_SEGMENT_BYTES
    for keys in QUICK_KEYS if stage.quick else KEYS:
        figures = _clean(stage, f"t-{keys}", (size, keys, codec), (megabytes, segment_bytes))
        stage.add(f"{codec} {size} B {keys} keys", figures)


def _clean(
    stage: Stage, topic: str, load: tuple[int, int, str], log: tuple[int, int]
) -> dict[str, float]:
    """Fill and clean a topic. `log` has its megabytes, and the bytes of its segments."""
    broker, (size, keys, codec), (megabytes, segment_bytes) = stage.broker, load, log
    record_bytes = size + KEY_BYTES
    configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": LAG_MS}
    configs |= {"min.cleanable.dirty.ratio": "0.01", "segment.bytes": str(segment_bytes)}
    create_topic(broker, topic, 1, configs)
    fill(broker, topic, size, keys, megabytes * 1_000_000 // record_bytes, codec)
    os.sync()  # the load is no burden of the cleaner
    sender = Sender(broker, "beside")
    sender.send_for(QUICK_IDLE_S / 2)
    idle_s, idle_cpu_s = QUICK_IDLE_S if stage.quick else IDLE_S, broker.usage().cpu_s
    idle = _idle(stage, topic, sender, idle_s)
    cpu_s, started = broker.usage().cpu_s, time.time()
    idle_share = (cpu_s - idle_cpu_s) / idle_s
    alter(broker, Kind.TOPIC, topic, "min.compaction.lag.ms", "0")
    found, meanwhile, memory = _watch(stage, topic, sender)
    cpu_s = broker.usage().cpu_s - cpu_s - idle_share * (time.time() - started)
    delete(broker, topic)
    cleaned_bytes = found.end_offset * record_bytes
    return {
        "mb_per_s": cleaned_bytes / 1e6 / max(found.at_s - started, 0.001),
        "cpu": max(cpu_s, 0.01) / (cleaned_bytes / 1e9),
        "memory": memory / 1e6,
        "p99_ms": p99_ms(meanwhile or idle),
        "p99_ratio": p99_ms(meanwhile or idle) / p99_ms(idle),
    }


def _idle(stage: Stage, topic: str, sender: Sender, seconds: float) -> list[float]:
    """Send records while nothing is cleaned, asked about as often as while the cleaner works."""
    took: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cleaned(stage.broker, stage.side, topic)
        took += sender.send_for(LOOK_S)
    return took


def _watch(stage: Stage, topic: str, sender: Sender) -> tuple[Cleaned, list[float], int]:
    """Send records until the topic is clean. Also returns how long they took, and the memory."""
    meanwhile: list[float] = []
    memory = stage.broker.usage().resident_bytes
    end = time.monotonic() + CLEAN_S_MAX
    while (found := cleaned(stage.broker, stage.side, topic)) is None:
        if time.monotonic() > end:
            raise RuntimeError(f"{stage.broker.name} did not clean in {CLEAN_S_MAX} s")
        meanwhile += sender.send_for(LOOK_S)
        memory = max(memory, stage.broker.usage().resident_bytes)
    return found, meanwhile, memory


PARTS = {
    f"{codec}-{size}": Part(partial(compaction, codec, size)) for codec in CODECS for size in SIZES
}

if __name__ == "__main__":
    sys.exit(beside.main("compaction", __doc__ or "", PARTS))
