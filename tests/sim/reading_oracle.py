"""An oracle that knows every copy of every entry of a stream, and judges what its readers get.

It hears each copy as a bookie stores it, each answer of a bookie, and each change of the metadata.
Everything wrong is a line in `violations`:

    order       a reader got a position twice, not in order, or not at all
    above       a reader got an entry above the LAC
    changed     an offset holds something else than before
    reused      an offset that was acknowledged or shown is given to another record
    lost        a loss is reported where a copy may exist, or an accepted one is not
    bounds      a gap has other positions or offsets than what it covers
    kind        a gap has the wrong kind
    truncated   what is not truncated is said to be
    disagree    two readers see two logs
"""

import asyncio
from collections import Counter
from types import SimpleNamespace

from ledger.client import metadata_format
from ledger.core.accepted_losses import decode_losses
from ledger.core.entry_format import HEADER_BYTES
from ledger.core.gaps import ENTRY_MAX, GapKind
from ledger.core.records import parse_entry
from ledger.core.segments import decode_segment
from ledger.streams.accepted_losses import losses_path
from ledger.streams.segment_store import log_root
from tests.sim.checkers import DIGEST_BYTES
from tests.sim.network import Observer

STALE_S = 10.0  # a reader may know of copies as they were so long ago
LOST = "lost"  # what stands in a log for an offset whose loss was accepted


class Oracle(Observer):
    """The truth about one stream. It listens instead of the checks of the cluster."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.violations = []
        self.seen = Counter()  # paths that were taken
        self.bodies = {}  # by (ledger, entry): the first copy that became durable, whole
        self.parsed = {}  # by (ledger, entry): its records
        self.told = Counter()  # by ledger: the highest LAC in an answer of a bookie
        self.segments = {}  # by number: as listed last
        self.number_of = {}  # by ledger
        self.start = 0  # the stored start of the stream
        self.accepted = {}  # by (segment, first entry, last entry): each range ever accepted
        self.accepted_now = ()
        self.content = {}  # by offset: the data of the stored record that holds it
        self.acked = {}  # by offset: the same, of acknowledged records only
        self.changed_s = {}  # by (ledger, entry): when a copy appeared last
        self.lost_s = float("-inf")  # when copies vanished last
        self.ledgers = SimpleNamespace(lost=set(), metadata={}, deleted=set())
        self._root = log_root(name)
        self._losses = losses_path(name)
        cluster.network.observer = self
        cluster.network.on_added = self.on_added
        cluster.tree.on_set = self.on_set
        cluster.tree.on_delete = self.on_delete

    def report(self, name, text):
        self.violations.append(f"{name}: {text}")

    # -- what happens ------------------------------------------------------------------------------

    def on_added(self, bookie, ledger, entry, body, recovery):
        self.changed_s[ledger, entry] = asyncio.get_running_loop().time()
        if (ledger, entry) not in self.bodies:
            self.bodies[ledger, entry] = body
            payload = body[HEADER_BYTES + DIGEST_BYTES :]
            self.parsed[ledger, entry] = list(parse_entry(payload))

    def on_read_reply(self, bookie, ledger, first, last, reply):
        self.told[ledger] = max(self.told[ledger], reply.lac)

    def on_lac_reply(self, bookie, ledger, reply):
        self.told[ledger] = max(self.told[ledger], reply.lac)

    def on_set(self, path, data, version):
        ledger = metadata_format.ledger_of_path(path)
        if ledger is not None and data:
            self.ledgers.metadata[ledger] = metadata_format.decode(data, ledger)
        elif path.startswith(self._root):  # a step of several changes may still be undone
            asyncio.get_running_loop().call_soon(self._look, path)

    def _look(self, path):
        """The stream's node at this path has changed."""
        record = self.cluster.tree.nodes.get(path)
        if record is None:
            return
        if path.startswith(f"{self._root}/ledgers/"):
            segment = decode_segment(record.data, where=path)
            self.segments[segment.number] = segment
            self.number_of[segment.ledger] = segment.number
        elif path == f"{self._root}/start":
            self.start = max(self.start, int(record.data))
        elif path == self._losses:
            self._on_losses(decode_losses(record.data, path).ranges)

    def _on_losses(self, ranges):
        """Stored ranges stay until the start has passed them."""
        for each in set(self.accepted_now) - set(ranges):
            if each.offsets.last >= self.start and each.offsets.last >= each.offsets.first:
                self.report("lost", f"{each[:3]} is removed, and the start is {self.start}")
        self.accepted_now = ranges
        for each in ranges:
            self.accepted[each[:3]] = each

    def on_delete(self, path):
        ledger = metadata_format.ledger_of_path(path)
        if ledger is not None:
            self.ledgers.deleted.add(ledger)

    def on_bookie_lost(self, bookie):
        """Its data is gone, or a part of it."""
        self.ledgers.lost.add(bookie)
        self.on_copies_lost()

    def on_copies_lost(self):
        self.lost_s = asyncio.get_running_loop().time()

    def on_found_again(self, ledger, entry):
        self.changed_s[ledger, entry] = asyncio.get_running_loop().time()

    def on_acked(self, offset, count, data):
        """An owner told its caller that the record is durable."""
        self.put("an owner", offset, count, data)
        for each in range(offset, offset + count):
            self.acked[each] = data

    def put(self, who, offset, count, data):
        """Offset and record are one pair for ever, once acknowledged or shown."""
        for each in range(offset, offset + count):
            known = self.content.setdefault(each, data)
            if known != data:
                self.report("reused", f"{who}: offset {each} held {known}, now {data}")
                return

    # -- what is true ------------------------------------------------------------------------------

    def confirmed(self, ledger):
        """The last entry that a reader may get."""
        metadata = self.ledgers.metadata[ledger]
        forced = any(each.forced and each.evidence.ledger == ledger for each in self.accepted_now)
        if metadata.closed:
            return max(metadata.last_entry, self.told[ledger] if forced else -1)
        return max(self.told[ledger], metadata.last_fragment.first - 1)

    def offsets_of(self, number, first, last):
        """The offsets [low, end) of these entries, None for entries that never were."""
        segment = self.segments[number]
        records = [self.parsed.get((segment.ledger, entry)) for entry in (first, last)]
        if not all(records):
            return None
        low, high = records[0][0], records[1][-1]
        base = segment.start_sequence_id
        begin = base + low.position - (0 if low.control else 1)
        return begin, base + high.position + max(high.records - 1, 0)

    def entry_at(self, offset):
        """(segment number, entry) of the confirmed record that holds the offset, or None."""
        for number in sorted(self.segments, reverse=True):
            segment = self.segments[number]
            if segment.start_sequence_id > offset or segment.ledger in self.ledgers.deleted:
                continue
            position = offset - segment.start_sequence_id + 1
            entries = range(self.confirmed(segment.ledger) + 1)
            holds = (each for each in entries if self._holds(segment.ledger, each, position))
            entry = next(holds, None)
            return None if entry is None else (number, entry)
        return None

    def _holds(self, ledger, entry, position):
        return any(
            record.position <= position < record.position + record.records
            for record in self.parsed.get((ledger, entry), ())
        )

    def copies(self, ledger, entry):
        """The bookies of the write set that have a copy, or of which nobody knows."""
        found = []
        for name in self.ledgers.metadata[ledger].bookies_of(entry):
            bookie = self.cluster.bookies.get(name)
            if bookie is None or entry in bookie.durable_entries(ledger):
                found.append(name)
        return found

    def may_exist(self, ledger, entry):
        """True if a reader had no reason, for some time, to take the entry for lost."""
        if ledger in self.ledgers.deleted or not self.copies(ledger, entry):
            return False
        changed_s = max(self.lost_s, self.changed_s.get((ledger, entry), float("-inf")))
        return asyncio.get_running_loop().time() - changed_s > STALE_S

    def accepted_at(self, number, entry):
        """The accepted range that holds this position, or None."""
        for each in self.accepted.values():
            if each.segment == number and each.first <= entry <= each.last:
                return each
        return None

    def accepted_offset(self, offset):
        for each in self.accepted.values():
            if each.offsets.first <= offset <= each.offsets.last:
                return each
        return None

    # -- native readers ----------------------------------------------------------------------------

    def judge_skip(self, who, at, position):
        """A reader at `at` went on at `position`: only control records may lie in between."""
        if position[0] != at[0]:
            self.report("order", f"{who} went from {at} to {position}")
            return
        segment = self.segments.get(at[0])
        for entry in range(at[1], position[1] if segment else at[1]):
            if not self._is_control(segment.ledger, entry):
                self.report("order", f"{who} went from {at} to {position}")
                return

    def _is_control(self, ledger, entry):
        records = self.parsed.get((ledger, entry))
        return bool(records) and all(record.control for record in records)

    def judge_record(self, who, record):
        number, entry, slot = record.dlsn
        segment = self.segments.get(number)
        if segment is None:
            self.report("order", f"{who} got {record.dlsn} of no segment")
            return
        ledger = segment.ledger
        if ledger not in self.ledgers.deleted and entry > self.confirmed(ledger):
            confirmed = self.confirmed(ledger)
            self.report("above", f"{who} got entry {entry} of {ledger}, confirmed is {confirmed}")
        stored = [one for one in self.parsed[ledger, entry] if one.slot == slot]
        expected = stored and (
            segment.start_sequence_id + stored[0].position - 1,
            stored[0].records,
            bytes(stored[0].data),
        )
        if expected != (record.offset, record.records, bytes(record.data)):
            self.report("changed", f"{who} got {record} for {expected}")
        self.put(who, record.offset, record.records, bytes(record.data))

    def judge_gap(self, who, gap):
        self.seen[f"a gap {gap.kind.name}"] += 1
        if gap.kind is GapKind.DATALOSS:
            self._judge_loss(who, gap)
        elif gap.kind is GapKind.TRIM:
            if gap.offsets.last >= self.start:
                self.report("truncated", f"{who} got {gap}, the start is {self.start}")
        elif gap.kind is GapKind.BRIDGE:
            self._judge_bridge(who, gap)
        else:
            self.report("kind", f"{who} got {gap}")

    def _judge_bridge(self, who, gap):
        number, first = gap.first
        segment = self.segments[number]
        end = (segment.last_entry + 1, ENTRY_MAX)
        right = segment.completed and (first, gap.last.entry) == end
        if not right or gap.last.segment != number or gap.offsets.last >= gap.offsets.first:
            self.report("bounds", f"{who} got {gap} for {segment}")

    def _judge_loss(self, who, gap):
        number, first = gap.first
        if gap.last.segment != number or gap.evidence is None:
            self.report("bounds", f"{who} got {gap}")
            return
        ledger = self.segments[number].ledger
        if gap.evidence.ledger != ledger:
            self.report("bounds", f"{who} got {gap} of ledger {ledger}")
        last = min(gap.last.entry, max(self.confirmed(ledger), first))
        for entry in range(first, last + 1):
            accepted = self.accepted_at(number, entry)
            if accepted is None and self.may_exist(ledger, entry):
                names = self.copies(ledger, entry)
                self.report("lost", f"{who} got {gap}, but {names} may hold {entry}")
                return
        if gap.evidence.acceptance is not None:
            self.seen["an accepted loss reached a native reader"] += 1
            if self.accepted_at(number, first) is None:
                self.report("lost", f"{who} got {gap}, which nobody accepted")
        self._judge_bounds(who, gap)

    def _judge_bounds(self, who, gap):
        true = self.offsets_of(gap.first.segment, gap.first.entry, gap.last.entry)
        if true is None:
            return
        low, end = true
        told = gap.offsets
        low = max(low, min(told.first, self.start, end))  # what is truncated may be left out
        both_empty = end == low and told.last < told.first
        same = both_empty or (told.first, told.last) == (low, end - 1)
        at_most = end == low or told.first <= low < end <= told.last + 1
        if not same and (told.exact or not at_most):
            self.report("bounds", f"{who} got {gap}, its offsets are {low} to {end - 1}")

    # -- readers of offsets ------------------------------------------------------------------------

    def judge_stored(self, who, at, records):
        """Records that were read from offset `at` on."""
        following = at
        for number, record in enumerate(records):
            first, end = record.sequence_id, record.end_sequence_id
            holds = first <= at < end if number == 0 else first == following
            if not holds:
                self.report("order", f"{who} read {first} to {end} at {following}, from {at}")
                return
            following = end
            lost = getattr(record, "lost", None)
            if lost is not None:
                self._judge_accepted(who, record)
            else:
                self.put(who, first, end - first, b"".join(record.data))
                self._judge_shown(who, first)

    def _judge_accepted(self, who, record):
        self.seen["an accepted loss was read"] += 1
        lost = self.accepted.get(record.lost[:3])
        if lost is None:
            self.report("lost", f"{who} read {record}, which nobody accepted")
        elif (record.sequence_id, record.end_sequence_id) != (
            lost.offsets.first,
            lost.offsets.last + 1,
        ):
            self.report("bounds", f"{who} read {record} for {lost}")

    def _judge_shown(self, who, offset):
        if offset in self.acked:
            return
        for number in sorted(self.segments, reverse=True):
            segment = self.segments[number]
            if segment.start_sequence_id <= offset:
                break
        else:
            return
        if segment.ledger not in self.ledgers.deleted and self.entry_at(offset) is None:
            self.report("above", f"{who} read offset {offset}, which is not confirmed")

    def judge_lost(self, who, offset):
        """An offset that cannot be read because its entry is lost."""
        self.seen["a loss was refused"] += 1
        place = self.entry_at(offset)
        if place is None:
            return
        number, entry = place
        if self.may_exist(self.segments[number].ledger, entry):
            names = self.copies(self.segments[number].ledger, entry)
            self.report("lost", f"{who} cannot read {offset}, but {names} hold entry {entry}")
