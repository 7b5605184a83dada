"""Transactions beside Apache Kafka 4.3: the same Java clients, the same disk, one after the other.

    make bench-transactions
    make bench-transactions PARTS=produce,commits RUNS=1
    python -m tests.bench.transactions --parts commits --pair nosync --quick --runs 1

The parts:
- `produce`: ProducerPerformance in transactions of 10 and 100 ms.
- `commits`: one record in each of 1, 10 and 50 partitions per transaction, by 1 and 100 producers.
- `committed`: one topic, read with read_committed and with read_uncommitted.
- `copier`: TransactionalMessageCopier, which commits the offsets in its transactions.
- `words`: a word count of Kafka Streams with exactly_once_v2, end to end.

Prints the figures of the last run as ours / Apache Kafka's = worst ratio, and one line of JSON for
each part. CPU of transactions is in seconds per GB, of commits and words in ms for each. A producer
of `commits` now and then ends its transaction before it sends the records; `replaced_count` is the
number of producers that therefore failed, `early_count` that of commits without some records.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from pathlib import Path

from tests.bench import beside, transaction_applications
from tests.bench.beside import Part, Stage
from tests.bench.sides import Round, consume, create_topic, java, produce
from tests.peers import install

DURATIONS_MS = (10, 100)
SIZES = (100, 1024)
PARTITIONS = (1, 6)
# Partitions of each small transaction, and how many producers commit at once.
FANS = tuple(itertools.product((1, 10, 50), (1, 100)))
QUICK_FANS = ((1, 1), (1, 20), (10, 1))
MEGABYTES, COMMITS_S = 200, 8.0
QUICK_MEGABYTES, QUICK_COMMITS_S = 10, 1.0
FIRST_SHARE = 0.02  # of the records, in the first round of a load
ROUND_S, QUICK_ROUND_S = 8.0, 1.0  # a round of half this time counts, though it is not whole
GROWTH_MAX = 8.0
WARM_UP_SHARE = 0.25  # of the records of a round, in front of those that count
READ_BYTES, READ_MS = 1024, 10
READS, QUICK_READS = 5, 2
LOAD = Path(__file__).with_name("java") / "TransactionLoad.java"


def _in_transactions(stage: Stage, topic: str, size: int, records: int, duration_ms: int) -> Round:
    """Write records in transactions."""
    os.sync()  # what earlier rounds left for the disk is not this one's burden
    words = ["--transactional-id", topic, "--transaction-duration-ms", str(duration_ms)]
    words += ["--warmup-records", str(int(records * WARM_UP_SHARE))]
    return produce(stage.broker, topic, size, records, -1, *words)


def _long_round(stage: Stage, topic: str, size: int, duration_ms: int) -> Round:
    """Write rounds that grow until one is long enough or whole, because sides differ tenfold."""
    megabytes = stage.megabytes or (QUICK_MEGABYTES if stage.quick else MEGABYTES)
    whole = int(megabytes * 1e6 / size)
    records, round_s = int(whole * FIRST_SHARE), QUICK_ROUND_S if stage.quick else ROUND_S
    while True:
        found = _in_transactions(stage, topic, size, records, duration_ms)
        took_s = records / found.records_per_s
        if records == whole or took_s >= round_s / 2:
            return found
        records = min(whole, int(records * min(GROWTH_MAX, round_s / took_s)))


def produced(stage: Stage) -> None:
    """ProducerPerformance with a transactional id."""
    for duration_ms, size, partitions in itertools.product(DURATIONS_MS, SIZES, PARTITIONS):
        topic = f"t-{duration_ms}-{size}-{partitions}"
        create_topic(stage.broker, topic, partitions)
        found = _long_round(stage, topic, size, duration_ms)
        figures = {"records_per_s": found.records_per_s, "cpu": found.cpu_s_per_gb}
        figures["p99_ms"] = found.p99_ms
        figures["memory"] = found.resident_bytes / 1e6
        stage.add(f"{duration_ms} ms {size} B {partitions}", figures)


def committed(stage: Stage) -> None:
    """Read one topic with both isolation levels in turn. The first time of each does not count."""
    megabytes = stage.megabytes or (QUICK_MEGABYTES if stage.quick else MEGABYTES)
    records = int(megabytes * 1e6 / READ_BYTES)
    create_topic(stage.broker, "read", 1)
    _in_transactions(stage, "read", READ_BYTES, records, READ_MS)
    rates: dict[str, list[float]] = {"read_uncommitted": [], "read_committed": []}
    cpu: dict[str, list[float]] = {"read_uncommitted": [], "read_committed": []}
    for level in list(rates) * ((QUICK_READS if stage.quick else READS) + 1):
        words = ["--command-property", f"isolation.level={level}"]
        found = consume(stage.broker, "read", READ_BYTES, records, *words)
        rates[level].append(found.records_per_s)
        cpu[level].append(found.cpu_s_per_gb)
    plain, wanted = (statistics.median(each[1:]) for each in rates.values())
    plain_cpu, wanted_cpu = (statistics.median(each[1:]) for each in cpu.values())
    figures = {"records_per_s": wanted, "cpu": wanted_cpu, "uncommitted_per_s": plain}
    figures |= {"time_ratio": plain / wanted, "cpu_ratio": wanted_cpu / max(plain_cpu, 1e-9)}
    stage.add(f"{READ_MS} ms {READ_BYTES} B", figures)


def commits(stage: Stage) -> None:
    """Small transactions of many producers at once."""
    classpath = install.compiled(LOAD, sorted(install.kafka_jars().glob("*.jar")))
    seconds = QUICK_COMMITS_S if stage.quick else COMMITS_S
    for partitions, producers in QUICK_FANS if stage.quick else FANS:
        topic = f"c-{partitions}-{producers}"
        create_topic(stage.broker, topic, partitions)
        words = [stage.broker.bootstrap, topic, partitions, producers, seconds]
        cpu_s = stage.broker.usage().cpu_s
        lines = java(LOAD.stem, *map(str, words), classpath=classpath).splitlines()
        found = json.loads(lines[-1])
        used = stage.broker.usage()
        figures = {name: found[name] for name in ("commits_per_s", "p50_ms", "p99_ms")}
        figures["cpu_ms"] = 1000 * (used.cpu_s - cpu_s) / found["all_commits"]
        figures["memory"] = used.resident_bytes / 1e6
        # Failures of the client in all transactions. TransactionLoad.java describes them.
        figures |= {name: found[name] for name in ("replaced_count", "early_count")}
        stage.add(f"{partitions} partitions {producers} producers", figures)


PARTS = {
    "produce": Part(produced),
    "commits": Part(commits),
    "committed": Part(committed, ("nosync",)),
    "copier": Part(transaction_applications.copier),
    "words": Part(transaction_applications.words),
}

if __name__ == "__main__":
    sys.exit(beside.main("transactions", __doc__ or "", PARTS))
