"""Checks what the members of one group read, against what was written.

A tenure is the time in which a member has a partition: from the callback that assigns it until the
one that revokes it, or reports it as lost, or until the member leaves or is killed. All members
take the time from the clock of one machine. The members commit what they have read before they give
a partition back, so nothing is read twice within an epoch of the group. In the classic protocol the
epoch is the generation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

Place = tuple[int, int]
"""A partition and an offset."""


class Event(NamedTuple):
    """What a member noted. `epoch` and `offsets` belong to `read`, `text` to `error`.

    A member that is killed notes nothing: the test adds the event `killed` for it.
    """

    time_us: int
    member: str
    kind: str
    partitions: tuple[int, ...] = ()
    epoch: int = -1
    offsets: tuple[int, ...] = ()
    text: str = ""


class Tenure:
    """One member with one partition. `ended_us` is None if no event ended it."""

    def __init__(self, member: str, partition: int, begun_us: int) -> None:
        self.member, self.partition, self.begun_us = member, partition, begun_us
        self.ended_us: int | None = None
        self.was_lost = self.was_killed = False
        self.offsets: list[int] = []


class Reading(NamedTuple):
    """The tenures of a history, and what was read outside of any."""

    tenures: list[Tenure]
    outside: list[str]


def reading_of(events: Iterable[Event]) -> Reading:
    """Return the tenures of all members, in the order in which they began."""
    having: dict[tuple[str, int], Tenure] = {}
    found = Reading([], [])
    for event in sorted(events, key=lambda each: each.time_us):
        if event.kind in ("left", "killed"):
            partitions = [place for member, place in having if member == event.member]
        else:
            partitions = list(event.partitions)
        for partition in partitions:
            _note(event, partition, having, found)
    return found


def _note(
    event: Event, partition: int, having: dict[tuple[str, int], Tenure], found: Reading
) -> None:
    key = event.member, partition
    if event.kind == "assigned":
        having[key] = Tenure(event.member, partition, event.time_us)
        found.tenures.append(having[key])
    elif key not in having:
        if event.kind == "read":
            found.outside.append(f"{event.member} reads partition {partition}, which it has not")
    elif event.kind == "read":
        having[key].offsets += event.offsets
    else:
        ended = having.pop(key)
        ended.ended_us = event.time_us
        ended.was_lost = event.kind == "lost"
        ended.was_killed = event.kind == "killed"


def check(events: Collection[Event], acknowledged: Collection[Place]) -> list[str]:
    """Return what is wrong: nothing in a good history.

    A record that was acknowledged and that no member read is wrong, as is one that two reads of
    one epoch return. A tenure has each offset once and in order, and no two members have a
    partition at once. A member that lost a partition may have missed that another one has it.
    """
    found = reading_of(events)
    return [
        *_lost(events, acknowledged),
        *_twice(events),
        *found.outside,
        *(fault for each in found.tenures for fault in _disorder(each)),
        *_shared(found.tenures),
    ]


class Takeover(NamedTuple):
    """A tenure that ended because its member was killed, and those of the partition after it."""

    killed: Tenure
    later: list[Tenure]

    @property
    def after_us(self) -> int:
        """Return the time until the partition had a member again, which must be."""
        assert self.killed.ended_us is not None
        return self.later[0].begun_us - self.killed.ended_us


def takeovers(events: Iterable[Event]) -> list[Takeover]:
    """Return what followed each tenure of a killed member, in the order of these."""
    tenures = reading_of(events).tenures
    return [
        Takeover(
            each,
            [
                other
                for other in tenures
                if other.partition == each.partition and other.begun_us > each.begun_us
            ],
        )
        for each in tenures
        if each.was_killed
    ]


def check_takeovers(
    found: Iterable[Takeover], committed: Mapping[tuple[str, int], int], session_us_min: int
) -> list[str]:
    """Return what is wrong with takeovers from killed members: nothing in a good history.

    Another member takes a partition over, but not within `session_us_min` after the kill. The first
    offset that is read then is the committed one, which `committed` has by killed member and
    partition.
    """
    return [fault for each in found for fault in _faults_of(each, committed, session_us_min)]


def _faults_of(
    takeover: Takeover, committed: Mapping[tuple[str, int], int], session_us_min: int
) -> Iterator[str]:
    killed = takeover.killed
    what = f"partition {killed.partition} of {killed.member}, which was killed"
    if not takeover.later:
        yield f"no member takes over {what}"
        return
    if takeover.after_us < session_us_min:
        yield (
            f"{takeover.later[0].member} takes over {what}, {takeover.after_us // 1_000} ms later:"
            " before its session ended"
        )
    first = next((each for each in takeover.later if each.offsets), None)
    wanted = committed[(killed.member, killed.partition)]
    if first is not None and first.offsets[0] != wanted:
        yield f"{first.member} takes over {what}, at offset {first.offsets[0]}, not {wanted}"


def redelivered(events: Iterable[Event]) -> int:
    """Return how many reads repeat a record, in whatever epoch."""
    return sum(count - 1 for count in Counter(_places(events)).values())


def _places(events: Iterable[Event]) -> Iterator[Place]:
    for event in events:
        if event.kind == "read":
            yield from ((event.partitions[0], offset) for offset in event.offsets)


def _lost(events: Iterable[Event], acknowledged: Collection[Place]) -> Iterator[str]:
    for partition, offset in sorted(set(acknowledged).difference(_places(events))):
        yield f"offset {offset} of partition {partition} was read by no member"


def _twice(events: Iterable[Event]) -> Iterator[str]:
    readers: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for event in events:
        for offset in event.offsets:
            readers[(event.epoch, event.partitions[0], offset)].append(event.member)
    for (epoch, partition, offset), members in sorted(readers.items()):
        if len(members) > 1:
            names = " and ".join(members)
            yield f"offset {offset} of partition {partition} came twice in epoch {epoch}: {names}"


def _disorder(tenure: Tenure) -> Iterator[str]:
    for before, after in pairwise(tenure.offsets):
        if after != before + 1:
            yield (
                f"{tenure.member} reads offset {after} of partition {tenure.partition} "
                f"after {before}"
            )


def _shared(tenures: Iterable[Tenure]) -> Iterator[str]:
    before: dict[int, Tenure] = {}
    for tenure in tenures:
        former = before.get(tenure.partition)
        if former is not None and not former.was_lost:
            until_us = former.ended_us
            if until_us is None or until_us > tenure.begun_us:
                yield (
                    f"{former.member} and {tenure.member} have partition {tenure.partition} at once"
                )
        before[tenure.partition] = tenure
