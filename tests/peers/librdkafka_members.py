"""Runs members of one group of either protocol with librdkafka, as a process.

`python -m tests.peers.librdkafka_members FILE`: a JSON file with the fields of
`tests.peers.members.Members`. The lines that it prints are those of tests/peers/go/members.go.
SIGTERM lets all members leave.
"""

from __future__ import annotations

import json
import random
import signal
import struct
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

POLL_S: Final = 0.5
AT_ONCE: Final = 50  # records between two commits
PENDING_S_MAX: Final = 1.0  # a note must not be later than what another member does meanwhile
HEARTBEAT_MS: Final = 1_000  # of the classic protocol
_EPOCH: Final = struct.Struct("=7xi")  # of librdkafka's form of a member: "CGMDv2:", its epoch


class Member:
    """One consumer, for a time."""

    def __init__(self, name: str, keys: dict[str, Any]) -> None:
        self._name = name
        self._topic = keys["topic"]
        self._pending: list[Message] = []  # read, and neither noted nor committed yet
        self._pending_since_s = 0.0
        self._generation: int | None = None  # of the last assignment; None in the consumer protocol
        self._is_classic = keys["protocol"] == "classic"
        self._consumer = Consumer(_settings(keys))

    def run(self, ending: threading.Event, end_s: float) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        while not ending.is_set() and time.monotonic() < end_s:
            record = self._consumer.poll(POLL_S)
            if record is not None and record.error() is not None:
                self._note("error", str(record.error()))
            elif record is not None:
                self._take(record)
            if record is None or self._is_due():
                self._process()
        self._process()
        try:
            self._consumer.close()
        except KafkaException as fault:
            self._note("error", str(fault))
        self._note("left", "-")

    def _take(self, record: Message) -> None:
        if not self._pending:
            self._pending_since_s = time.monotonic()
        self._pending.append(record)

    def _is_due(self) -> bool:
        waited_s = time.monotonic() - self._pending_since_s
        return len(self._pending) >= AT_ONCE or (bool(self._pending) and waited_s > PENDING_S_MAX)

    def _process(self, *, commit: bool = True) -> None:
        """Note what was read, and commit it."""
        if not self._pending:
            return
        epoch = self._epoch() if self._generation is None else self._generation
        offsets: dict[int, list[int]] = defaultdict(list)
        for record in self._pending:
            offsets[record.partition()].append(record.offset())
        self._pending.clear()
        for partition, each in offsets.items():
            self._note("read", f"{epoch} {partition} {','.join(map(str, each))}")
        if not commit:
            return
        ends = [TopicPartition(self._topic, place, each[-1] + 1) for place, each in offsets.items()]
        try:
            self._consumer.commit(offsets=ends, asynchronous=False)
        except KafkaException as fault:
            self._note("error", str(fault))

    def _epoch(self) -> int:
        """Return the epoch of the member, or in the classic protocol the generation."""
        (epoch,) = _EPOCH.unpack_from(self._consumer.consumer_group_metadata())
        return int(epoch)

    def _note(self, event: str, more: str) -> None:
        line = f"{time.time_ns() // 1_000} {self._name} {event} {more}\n"
        sys.stdout.write(line)  # one write: threads share the stream
        sys.stdout.flush()

    def _noted(self, event: str, places: list[TopicPartition]) -> None:
        if places:
            self._note(event, ",".join(str(each.partition) for each in places))

    def _assigned(self, _: Consumer, places: list[TopicPartition]) -> None:
        if self._is_classic:  # a lost generation is forgotten before its records are noted
            self._generation = self._epoch()
        self._noted("assigned", places)

    def _revoked(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._process()
        self._noted("revoked", places)

    def _lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._process(commit=False)
        self._noted("lost", places)


def _settings(keys: dict[str, Any]) -> dict[str, Any]:
    settings = {
        "bootstrap.servers": keys["brokers"],
        "group.id": keys["group"],
        "group.protocol": keys["protocol"],
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    if keys["protocol"] == "classic":
        settings["session.timeout.ms"] = keys["session_ms"]
        settings["heartbeat.interval.ms"] = HEARTBEAT_MS
        settings["partition.assignment.strategy"] = "range"
    return settings


def live(place: int, keys: dict[str, Any], ending: threading.Event) -> None:
    """Run one member after the other until the event is set."""
    draw = random.Random(keys["seed"] * 1000 + place)
    life = 0
    while not ending.is_set():
        end_s = time.monotonic() + draw.uniform(keys["shortest"], keys["longest"])
        Member(f"{keys['name']}-{place}.{life}", keys).run(ending, end_s)
        life += 1


def main() -> int:
    keys = json.loads(Path(sys.argv[1]).read_text())
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    places = [
        threading.Thread(target=live, args=(place, keys, ending)) for place in range(keys["count"])
    ]
    for each in places:
        each.start()
    for each in places:
        each.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
