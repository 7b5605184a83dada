"""What compaction may do to the log of a simulated cluster.

Errors have these names:

    moved       a record is at another offset than it was, or an offset has another record
    lost        the last committed record of a key is gone, or was too young to be superseded
    kept        a key has an old value, though its tombstone is gone
    early       a tombstone went before `delete.retention.ms`, or a ledger before
                `file.delete.delay.ms`
    past        a segment was cleaned that has a record of an undecided transaction
    zombie      a gateway changed the list of segments after another one had taken over
    poison      a cleaner gave up a partition whose batches it could not read
    gap         a reader got a batch that ends before the offset that it asked for

Apart from these, `tests.sim.transacting_oracle` lists what readers and coordinators report.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ledger.client import metadata_format
from ledger.core.segments import decode_segment
from tests.sim.transacting_oracle import COMMIT, Oracle

_LEDGERS = "/<default>/ledgers/"
_TICK_MS = 1  # times are rounded to it


class Stored(NamedTuple):
    """One record of a compacted partition."""

    number: int  # of its transaction
    sequence: int  # in its transaction
    offset: int
    key: bytes
    tombstone: bool
    timestamp: int


class Rules(NamedTuple):
    """The settings that limit the cleaner, in ms."""

    lag_ms: int  # min.compaction.lag.ms
    retention_ms: int  # delete.retention.ms
    delay_ms: int  # file.delete.delay.ms


class CompactedOracle(Oracle):
    """The oracle of transactions, and where each record was stored."""

    def __init__(self, rules):
        super().__init__()
        self.rules = rules
        self.stored = defaultdict(dict)  # by partition: {offset: Stored}, acknowledged or seen
        self._places = {}  # (partition, transaction, sequence): offset

    def place(self, partition, each):
        """A record was acknowledged, or read: its place never changes."""
        known = self.stored[partition].setdefault(each.offset, each)
        if known != each:
            self.report("moved", f"{each} of {partition} is where {known} was")
        at = self._places.setdefault((partition, *each[:2]), each.offset)
        if at != each.offset:
            self.report("moved", f"{each} of {partition} was at {at}")

    def committed(self, partition):
        """Return the committed records of a partition, in order."""
        found = self.stored[partition]
        return [
            found[at]
            for at in sorted(found)
            if self.transactions[found[at].number].outcome == COMMIT
        ]

    def check_view(self, partition, shown, end, began_ms, now_ms, *, quiet=False):
        """Check what a read_committed reader was shown from offset 0 to `end`.

        With `quiet` nothing was written or cleaned meanwhile.
        """
        rules, seen = self.rules, {each.offset: each for each in shown}
        committed, newest = self.committed(partition), {}
        for each in committed:
            newest[each.key] = each
            young = each.timestamp > now_ms - rules.lag_ms
            if young and each.offset < end and each.offset not in seen:
                self.report("lost", f"{each} of {partition} is younger than {rules.lag_ms} ms")
        slow = not quiet and now_ms - began_ms >= rules.retention_ms
        for key, last in newest.items():
            if last.offset >= end or last.offset in seen:
                continue
            if not last.tombstone:
                self.report("lost", f"{last} of {partition} is the last of its key")
            elif now_ms - last.timestamp < rules.retention_ms:
                self.report("early", f"{last} of {partition} is gone at {now_ms}")
            elif not slow and any(each.key == key for each in seen.values()):
                self.report("kept", f"{partition} has values of {key}, which {last} deleted")

    def _check_lost(self, partition, found):
        """`check_view` knows which records may be gone."""


class ListedSegments:
    """Follows the segments and ledgers of the topic in the metadata store, change by change."""

    def __init__(self, oracle, tree, index_of):
        """`index_of` returns the partition of a stream by its name, or None."""
        self.oracle = oracle
        self.swaps = 0
        self.deleted = 0  # replaced ledgers
        self.loaded_s = {}  # by store: when it read the list last
        self._tree = tree
        self._index_of = index_of
        tree.follow()
        self._at = 0  # the changes before it were seen
        self._writers = {}  # by ledger: the store that lists it, or tries to
        self._segments = {}  # by path
        self._replaced_s = {}  # by ledger, when
        self._begun = defaultdict(list)  # by stream: (time, store) of segments that were begun

    def on_write(self, store, segment):
        """A gateway is about to list a segment with a new ledger."""
        self._writers[segment.ledger] = store

    def look(self):
        """Check the changes since the last call."""
        log = self._tree.log
        for at_s, path, node in log[self._at :]:
            if _LEDGERS in path:
                self._segment_changed(at_s, path, node)
            elif node is None:
                self._check_deleted(at_s, path)
        self._at = len(log)

    def _segment_changed(self, at_s, path, node):
        name = path.split("/")[2]
        index = self._index_of(name)
        if index is None:
            return
        if node is None:
            gone = self._segments.pop(path).ledger
            if all(each.ledger != gone for each in self._segments.values()):
                self._replaced_s[metadata_format.ledger_path(gone)] = at_s
            return
        segment, is_new = decode_segment(node.data, where=path), path not in self._segments
        self._segments[path] = segment
        if is_new and segment.cleaned:
            self._check_swap(at_s, name, index, segment)
        elif is_new and not segment.completed:
            self._begun[name].append((at_s, self._writers.get(segment.ledger)))

    def _check_swap(self, at_s, name, index, segment):
        self.swaps += 1
        start, end = segment.start_sequence_id, segment.end_sequence_id
        for offset, each in self.oracle.stored[index].items():
            if start <= offset < end and self.oracle.transactions[each.number].outcome is None:
                self.oracle.report("past", f"{each} of {index} is in cleaned {start} to {end}")
        writer = self._writers[segment.ledger]
        for begun_s, other in self._begun[name]:
            if other is not writer and self.loaded_s[writer] < begun_s:
                text = f"{index}: segment {segment.number} at {at_s}, taken over at {begun_s}"
                self.oracle.report("zombie", text)

    def _check_deleted(self, at_s, path):
        since_s = self._replaced_s.get(path)
        if since_s is None:
            return
        self.deleted += 1
        kept_ms = (at_s - since_s) * 1000
        if kept_ms < self.oracle.rules.delay_ms - _TICK_MS:
            self.oracle.report("early", f"{path} was deleted {kept_ms:.0f} ms after its swap")

    def ledgers(self, index):
        """Return the ledgers of a partition's segments by number, as they are listed."""
        return {
            each.number: each.ledger
            for path, each in self._segments.items()
            if self._index_of(path.split("/")[2]) == index
        }
