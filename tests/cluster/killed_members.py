"""Members of a group that end by SIGKILL, and what was committed of their partitions then."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.histories.tenures import Event, Tenure, reading_of
from tests.peers.members import CLIENTS, LONG_S, Members, events
from tests.peers.processes import Process, wait_until

MARK = "-killed-"
SETTLED_S = 1.0  # until a commit that was under way at the kill is stored
READ_S_MAX = 180.0
ANSWER_S_MAX = 60.0


def is_killed(member: str) -> bool:
    """Return True if a member belongs to the processes of `KilledMembers`, by its name."""
    return MARK in member


class KilledMembers:
    """One member of each client, in a process of its own, for each round.

    `committed` has the committed offset of each partition that a killed member had, by its name and
    the partition.
    """

    def __init__(self, members: Members, directory: Path, stack: ExitStack) -> None:
        self._members = replace(members, count=1, shortest=LONG_S, longest=LONG_S)
        self._directory = directory
        self._stack = stack
        self._rounds: list[list[Process]] = []
        self._kills: list[Event] = []
        self.committed: dict[tuple[str, int], int] = {}

    def start(self) -> None:
        """Start the members of the next round."""
        number = len(self._rounds)
        started = (
            self._members.started(client, self._directory, f"{client}{MARK}{number}")
            for client in CLIENTS
        )
        self._rounds.append([self._stack.enter_context(each) for each in started])

    def kill(self) -> None:
        """Kill the members of this round by SIGKILL once each has a partition that it reads."""
        had: list[Tenure] = []
        doomed = self._rounds[-1]
        wait_until(lambda: all(map(reads, doomed)), "members to read", READ_S_MAX, pause_s=0.1)
        for process in doomed:
            process.kill()
            now_us = time.time_ns() // 1_000
            seen = list(events(process.output()))
            kills = [Event(now_us, name, "killed") for name in sorted({e.member for e in seen})]
            self._kills += kills
            had += [each for each in reading_of([*seen, *kills]).tenures if each.was_killed]
        threading.Event().wait(SETTLED_S)
        offsets = self._offsets([each.partition for each in had])
        self.committed |= {(each.member, each.partition): offsets[each.partition] for each in had}

    def events(self) -> list[Event]:
        """Return what the members of all rounds noted, and their ends."""
        noted = [e for each in self._rounds for process in each for e in events(process.output())]
        return [*noted, *self._kills]

    def _offsets(self, partitions: list[int]) -> dict[int, int]:
        """Return the committed offsets; that of a partition without one is 0."""
        admin = AdminClient({"bootstrap.servers": self._members.brokers, "log_level": 0})
        places = [TopicPartition(self._members.topic, each) for each in partitions]
        if not places:
            return {}
        asked = ConsumerGroupTopicPartitions(self._members.group, places)
        found = admin.list_consumer_group_offsets([asked])[self._members.group]
        return {
            each.partition: max(0, each.offset)
            for each in found.result(ANSWER_S_MAX).topic_partitions
        }


def reads(process: Process) -> bool:
    """Return True if a member of the process has a partition of which it has read records."""
    tenures = reading_of(events(process.output())).tenures
    return any(each.ended_us is None and each.offsets for each in tenures)
