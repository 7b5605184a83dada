"""What the entries of a simulated stream hold, how they are lost, and ranges of them."""

from typing import NamedTuple

from ledger.core.gaps import ENTRY_MAX
from ledger.core.records import parse_entry
from tests.ledger import lost_stream_rig
from tests.ledger.life_rig import listed

_DIGEST_BYTES = 36


class Held(NamedTuple):
    """An entry and the sequence ids of its records, none for control records."""

    segment: int
    entry: int
    offsets: range


def held(rig, number):
    """Return the entries of a segment that at least one bookie stores, in order."""
    segment = next(each for each in listed(rig) if each.number == number)
    bodies = {}
    for bookie in rig.world.bookies.values():
        if segment.ledger in bookie.ledgers:
            bodies |= bookie.ledgers[segment.ledger].entries
    start, found = start_of(rig, number), []
    for entry in sorted(bodies):
        records = list(parse_entry(memoryview(bytes(bodies[entry]))[_DIGEST_BYTES:]))
        last = records[-1]
        end = start + last.position + max(last.records - 1, 0)
        user = [each for each in records if not each.control]
        first = start + user[0].position - 1 if user else end
        found.append(Held(number, entry, range(first, end)))
    return found


def start_of(rig, number):
    before = [each for each in listed(rig) if each.number < number]
    own = next(each for each in listed(rig) if each.number == number)
    if own.completed or own.start_sequence_id >= 0:
        return own.start_sequence_id
    return before[-1].end_sequence_id if before else 0


def entry_of(rig, offset):
    """Return the entry that holds a sequence id, and the number of its segment."""
    for segment in listed(rig):
        for each in held(rig, segment.number):
            if offset in each.offsets:
                return each
    raise AssertionError(f"no entry holds {offset}")


def forget(rig, number, *entries):
    """Every bookie loses the entries. Returns what restores them."""
    ledger = next(each.ledger for each in listed(rig) if each.number == number)
    taken = []
    for bookie in rig.world.bookies.values():
        stored = bookie.ledgers.get(ledger)
        for entry in entries:
            if stored is not None and entry in stored.entries:
                taken.append((stored.entries, entry, stored.entries.pop(entry)))

    def restore():
        for place, entry, body in taken:
            place[entry] = body

    return restore


def lost_range(rig, number, first, last, offsets=None):
    """Return an accepted range. Without `offsets` they are those of the stored entries."""
    if offsets is None:
        inside = [each for each in held(rig, number) if first <= each.entry <= last]
        offsets = inside[0].offsets.start, inside[-1].offsets.stop - 1
    segment = next(each for each in listed(rig) if each.number == number)
    return lost_stream_rig.lost_range(segment, first, last, *offsets)


def reserved_range(rig, number, last_entry, end, count=1000):
    """Return the range behind the last readable entry of a ledger that was closed by force."""
    segment = next(each for each in listed(rig) if each.number == number)
    offsets = end, end + count - 1
    return lost_stream_rig.lost_range(segment, last_entry + 1, ENTRY_MAX, *offsets, exact=False)
