"""A copy job as a process: each transaction has records and the offsets of their source.

    python -m tests.cluster.copier CLIENT BOOTSTRAP NAME RUN GROUP SOURCE TARGET NEWEST PARTITIONS \
        GATE SEED

CLIENT is `librdkafka`, a member of its group, or `aiokafka`, which copies all partitions alone.
`Copier.java` does the same with Kafka's own client, and takes the same words. NAME is the
transactional id, RUN the number of this process. A transaction copies records from SOURCE to
TARGET, writes the last value of each key to the compacted topic NEWEST, and stores its offsets.
Each record names its transaction in a header, `NAME.RUN.NUMBER`.

The job prints a line at each point of a transaction: init, ongoing, pending (its offsets are
stored), ending, and `ended COUNT OUTCOME TRANSACTION`. It waits at the point that the file GATE
names, `POINT OUTCOME`, until that file is gone; the outcome is commit or abort. Without a gate it
aborts some transactions by itself, and then copies their records again.

A job whose producer is fenced or fails for good exits with code 1. The proof starts it again with
the same NAME. What it retries goes to stderr. Two clients can wait for ever for a broker that has
left the cluster, so a call that takes too long ends the job too: send_offsets_to_transaction of
librdkafka (its issue 5511), and all calls of aiokafka (its issue 1145).
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as Place
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.cluster.copies import ABORT, COMMIT, KEYS, key_of, place_of

RECORDS_MAX = 200  # of a transaction
ABORTS = 0.1  # share of transactions that end without a gate
POLL_S = 0.2
CALL_S = 10.0
STUCK_S = 12.0
RETRIES_MAX = 8
TIMEOUT_MS = 40_000  # of a transaction
SESSION_MS = 6_000
LOOK_S = 0.005
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the proof reads the points only


class Job:
    """The arguments and the gate of a job, for both kinds of clients."""

    def __init__(self, words: list[str]) -> None:
        self.client, self.bootstrap, self.name, self._run, self.group = words[:5]
        self.source, self.target, self.newest, partitions, gate, seed = words[5:]
        self.partitions = int(partitions)
        self._gate = Path(gate)
        self._draw = random.Random(f"{seed} {self.name} {self._run}")
        self._number = 0  # of this transaction
        self.commits = True  # the outcome of this transaction

    def begin(self) -> int:
        """Draw the outcome of a transaction; return how many records it may have."""
        self.commits = self._draw.random() >= ABORTS
        self._number += 1
        return self._draw.randint(1, RECORDS_MAX)

    @property
    def transaction(self) -> str:
        return f"{self.name}.{self._run}.{self._number}"

    def headers(self) -> list[tuple[str, bytes]]:
        """Return the headers of all records of this transaction."""
        return [("transaction", self.transaction.encode())]

    def records(self, values: Iterable[int]) -> list[tuple[str, int, bytes, bytes]]:
        """Return (topic, partition, key, value) of what a transaction with these values writes."""
        copies: list[tuple[str, int, bytes, bytes]] = []
        last: dict[int, int] = {}
        for value in values:
            key = key_of(value, KEYS)
            last[key] = value
            place = place_of(value, KEYS, self.partitions)
            copies.append((self.target, place, b"%d" % key, b"%d" % value))
        copies += [(self.newest, 0, b"%d" % key, b"%d" % last[key]) for key in last]
        return copies

    def ended(self, count: int) -> None:
        """Print the outcome of a transaction, which its coordinator has acknowledged."""
        outcome = COMMIT if self.commits else ABORT
        print(f"ended {count} {outcome} {self.transaction}", flush=True)

    def at(self, point: str) -> None:
        """Print the point, and wait there while the gate names it."""
        print(point, flush=True)
        held = False
        pause = threading.Event()
        while (words := self._wanted())[:1] == [point]:
            if not held:
                held = True
                self.commits = words[1] == COMMIT
                print(f"held {point}", flush=True)
            pause.wait(LOOK_S)

    def _wanted(self) -> list[str]:
        try:
            return self._gate.read_text().split()
        except FileNotFoundError:
            return []


class WithLibrdkafka:
    """A member of a group (KIP-447): the generation of its offsets keeps zombies out."""

    def __init__(self, job: Job) -> None:
        self._job = job
        settings: dict[str, Any] = {"bootstrap.servers": job.bootstrap, "log_level": 0}
        # A new bootstrap would remove all brokers, and meet the bug of offsets each time.
        settings["metadata.recovery.strategy"] = "none"
        if debug := os.environ.get("COPIER_DEBUG"):
            settings |= {"log_level": 7, "debug": debug}
        self._producer = Producer(
            settings | {"transactional.id": job.name, "transaction.timeout.ms": TIMEOUT_MS}
        )
        self._consumer = Consumer(
            settings
            | {
                "group.id": job.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 1_000,
            }
        )
        self._moved = False  # the assignment changed since `_batch` began
        self._metadata: Any = None  # of the generation of this assignment

    def run(self) -> None:
        self._retried(self._producer.init_transactions)
        self._job.at("init")
        self._consumer.subscribe(
            [self._job.source], on_assign=self._on_assign, on_revoke=self._on_revoke
        )
        while True:
            records = self._batch(self._job.begin())
            if self._moved:
                self._rewind()
            elif records:
                self._copy(records)

    def _on_assign(self, consumer: Consumer, _places: list[TopicPartition]) -> None:
        self._moved, self._metadata = True, consumer.consumer_group_metadata()

    def _on_revoke(self, _consumer: Consumer, _places: list[TopicPartition]) -> None:
        self._moved = True

    def _batch(self, count: int) -> list[Any]:
        self._moved = False
        found: list[Any] = []
        while len(found) < count and not self._moved:
            record = self._consumer.poll(0 if found else POLL_S)
            if record is None:
                break
            if record.error() is None:
                found.append(record)
        return found

    def _copy(self, records: list[Any]) -> None:
        job = self._job
        try:
            self._producer.begin_transaction()
            for topic, place, key, value in job.records(int(each.value()) for each in records):
                self._producer.produce(topic, value, key, place, headers=job.headers())
            self._producer.flush(CALL_S)
            job.at("ongoing")
            ends = {(each.partition(), each.offset() + 1) for each in records}
            where = [TopicPartition(job.source, at, end) for at, end in dict(sorted(ends)).items()]
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
            try:
                self._producer.send_offsets_to_transaction(where, self._metadata, CALL_S)
            finally:
                faulthandler.cancel_dump_traceback_later()
            job.at("pending")
            print("ending", flush=True)
            if job.commits:
                self._retried(self._producer.commit_transaction)
        except KafkaException as failed:
            error = failed.args[0]
            print(f"failed {error}", flush=True)
            if not error.txn_requires_abort():
                raise
            job.commits = False
        if not job.commits:
            self._retried(self._producer.abort_transaction)
            self._rewind()
        job.ended(len(records))

    def _rewind(self) -> None:
        """Go back to the committed offsets; unstable ones are waited for."""
        mine = self._consumer.assignment()
        for place in self._consumer.committed(mine, CALL_S) if mine else []:
            if place.error:
                raise KafkaException(place.error)
            self._consumer.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))

    def _retried(self, call: Callable[..., object], *words: object) -> None:
        """Call again after errors that the client calls retriable, a few times at most."""
        for left in reversed(range(RETRIES_MAX)):
            try:
                call(*words, CALL_S)
                return
            except KafkaException as failed:
                print(f"{call.__name__}: {failed.args[0]!r}", file=sys.stderr, flush=True)
                if not failed.args[0].retriable() or not left:
                    raise


async def with_aiokafka(job: Job) -> None:
    """Copy all partitions; the epoch of the id keeps zombies out. Any error ends the job."""
    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap,
        transactional_id=job.name,
        transaction_timeout_ms=TIMEOUT_MS,
    )
    async with asyncio.timeout(RETRIES_MAX * CALL_S):
        await producer.start()
    job.at("init")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=job.bootstrap,
        group_id=job.group,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    consumer.assign([Place(job.source, index) for index in range(job.partitions)])
    await consumer.start()
    while True:
        count = job.begin()
        found = await consumer.getmany(timeout_ms=int(POLL_S * 1_000), max_records=count)
        batches = {place: records for place, records in found.items() if records}
        if not batches:
            continue
        values = [int(each.value) for records in batches.values() for each in records]
        async with asyncio.timeout(CALL_S):
            await producer.begin_transaction()
            sent = [
                await producer.send(topic, value, key, place, headers=job.headers())
                for topic, place, key, value in job.records(values)
            ]
            await asyncio.gather(*sent)
        job.at("ongoing")
        ends = {place: records[-1].offset + 1 for place, records in batches.items()}
        async with asyncio.timeout(CALL_S):
            await producer.send_offsets_to_transaction(ends, job.group)
        job.at("pending")
        print("ending", flush=True)
        async with asyncio.timeout(CALL_S):
            await (producer.commit_transaction() if job.commits else producer.abort_transaction())
        if not job.commits:
            for place, records in batches.items():
                consumer.seek(place, records[0].offset)
        job.ended(len(values))


async def ending_at_errors(job: Job) -> None:
    try:
        await with_aiokafka(job)
    except Exception:
        end_at_once()


def end_at_once() -> None:
    """Print the error, and end without closing clients, which could wait for ever."""
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    job = Job(sys.argv[1:])
    if job.client == "aiokafka":
        asyncio.run(ending_at_errors(job))
        return
    try:
        WithLibrdkafka(job).run()
    except Exception:
        end_at_once()


if __name__ == "__main__":
    main()
