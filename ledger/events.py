"""The events of this process: what operators want to see later, in a ring in memory.

As with the log, there is one ring in each process, so that the code which notices something needs
no more than a call.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from ledger.core.ledger_metadata import LedgerMetadata
from ledger.ids import STREAM_KEY

EVENTS_MAX: Final = 10_000
TEXT_MAX: Final = 300  # characters of a fact; clients choose the names of topics and groups

Fact = str | int


class EventKind(StrEnum):
    """The kind of an event."""

    ROLL = "roll"  # a stream began a new segment
    ENSEMBLE_CHANGE = "ensemble-change"  # a writer replaced bookies of its ledger
    FENCE = "fence"  # a recovery began: the ledger takes no more entries of its writer
    RECOVERY = "recovery"  # a recovery ended: the ledger is closed
    TAKEOVER = "takeover"  # this gateway opened a partition as its leader
    REPAIR = "repair"  # a ledger has all its copies again
    LOSS = "loss"  # readers met lost records, or an operator accepted a loss
    CHANGE = "change"  # a client or an operator changed a topic, a group, a setting


class Event(NamedTuple):
    """One event. `facts` are names and numbers, each at most TEXT_MAX characters."""

    number: int  # from 1, without holes, since the process began
    at_ms: int  # wall time, milliseconds since 1970
    kind: EventKind
    facts: Mapping[str, Fact]


class EventRing:
    """The newest events. Adding one drops the oldest if there are `size` already."""

    def __init__(self, size: int = EVENTS_MAX) -> None:
        self._events: deque[Event] = deque(maxlen=size)
        self._added = 0  # the number of the newest event
        # Events of each kind and `reason`, which is empty but for ensemble changes. Only grows.
        self.counts: Counter[tuple[EventKind, str]] = Counter()

    @property
    def newest(self) -> int:
        """Return the number of the newest event, 0 before the first."""
        return self._added

    def add(self, kind: EventKind, at_ms: int, facts: Mapping[str, Fact]) -> None:
        self._added += 1
        changed = kind is EventKind.ENSEMBLE_CHANGE
        self.counts[kind, str(facts.get("reason", "")) if changed else ""] += 1
        short = {
            key: value[:TEXT_MAX] if isinstance(value, str) else value
            for key, value in facts.items()
        }
        self._events.append(Event(self._added, at_ms, kind, short))

    def after(self, number: int, count: int) -> list[Event]:
        """Return up to `count` events behind this number, oldest first.

        The first one has a greater number than the next if some were dropped meanwhile.
        """
        if not self._events or number >= self._added:
            return []
        skipped = max(0, number + 1 - self._events[0].number)
        return list(islice(self._events, skipped, skipped + count))


events: Final = EventRing()

PROCESS: Final = f"{os.getpid()}-{time.time_ns()}"
"""Tells this process from the one before it: events are numbered from 1 in each."""


def note_event(kind: EventKind, **facts: Fact) -> None:
    """Add an event to the ring of this process, as of now."""
    events.add(kind, time.time_ns() // 1_000_000, facts)


def note_ledger_event(kind: EventKind, metadata: LedgerMetadata, **facts: Fact) -> None:
    """Add an event of a ledger, with its id and the name of its stream if it has one."""
    stream = metadata.custom.get(STREAM_KEY)
    owner = {} if stream is None else {"stream": stream.decode(errors="replace")}
    note_event(kind, ledger=metadata.ledger, **owner, **facts)
