"""Known mistakes of log cleaners, planted into a whole cluster; its seeds must find each.

python -m tests.sim.proof_transactions --mistakes cleaner
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gateway.cleaning import cleaner as schedule
from gateway.core import cleaning
from gateway.core.cleaning import Cleaning
from gateway.core.cleaning_keys import KeyMap
from gateway.core.cleaning_results import NOT_FULL, CleanedBatch
from gateway.core.cleaning_transactions import CleanedTransactions
from gateway.wire.batches import read_header
from ledger.core.segments import LAYOUT_VERSION, names_segment
from ledger.errors import BadVersion, NoNode
from ledger.ports.metadata import Create, Delete
from ledger.streams.reads import SegmentReads
from ledger.streams.retention import Retention
from ledger.streams.segment_store import SegmentStore
from tests.sim.compacting_world import CompactingWorld
from tests.sim.planting import Mutation, patched

_filter_batches = Cleaning.filter_batches
_map_batches = Cleaning.map_batches
_index_of = SegmentReads.index_of
_cleanable = schedule.cleanable
_horizon_of = cleaning.horizon_of
_put = KeyMap.put
_end = CleanedTransactions.end


def gap_behind(self, data):
    moved = []
    for one in _filter_batches(self, data):
        own = read_header(one.data).last_offset_delta + 1
        if moved:
            moved[-1] = moved[-1]._replace(offsets=moved[-1].offsets + one.offsets - own)
        first = own if moved else one.offsets
        moved.append(CleanedBatch(first, one.timestamp_max, one.data))
    return moved


async def old_index(self, segment):
    """Read it from the head of the next segment, as for a segment that was not cleaned."""
    return await _index_of(self, replace(segment, layout_version=LAYOUT_VERSION))


def deleted_at_once(self, ledger):
    self._removed.append(ledger)


def past_the_lso(segments, stable_offset, now_ms, rules):
    return _cleanable(segments, 2**62, now_ms, rules)


def without_lag(segments, stable_offset, now_ms, rules):
    return _cleanable(segments, stable_offset, now_ms, rules._replace(lag_ms_min=0))


def without_tombstones(header):
    return -1 if header.records else _horizon_of(header)


def instead_of_another(self, words, offsets):
    noted = _put(self, words, offsets)
    if noted < len(offsets):
        self._places[np.flatnonzero(self._places[:, 2])[0], 2] = offsets[-1] + 1
    return len(offsets)


def never_full(self, data):
    _map_batches(self, data)
    return NOT_FULL


async def unversioned(self, before, after):
    root = f"{self._root}/ledgers"
    names = await self._metadata.children(root)
    same = [n for n in names if any(names_segment(n, each.number) for each in before)]
    gone = [Delete(f"{root}/{name}") for name in same]
    try:
        await self._metadata.multi([*gone, Create(self._path(after), after.encode())])
    except NoNode as error:
        raise BadVersion(root) from error


def always_without_records(self, producer_id, offset, *, commit):
    _end(self, producer_id, offset, commit=commit)
    return True


def not_aborted(self, producer_id, last_offset):
    return None


def _mistake(name, owner, **mistakes):
    return Mutation("K16", f"cleaner: {name}", patched(owner, **mistakes), CompactingWorld)


MISTAKES = (
    _mistake("a gap lies behind a batch", Cleaning, filter_batches=gap_behind),
    _mistake("the index is that of the old ledger", SegmentReads, index_of=old_index),
    _mistake("the old ledger is deleted at the swap", Retention, delete_later=deleted_at_once),
    _mistake("it passes the last stable offset", schedule, cleanable=past_the_lso),
    _mistake("a tombstone goes in the first round", cleaning, horizon_of=without_tombstones),
    _mistake("a full map drops the newest offset", KeyMap, put=instead_of_another),
    _mistake("what does not fit counts as mapped", Cleaning, map_batches=never_full),
    _mistake("a segment is replaced without a version", SegmentStore, replace=unversioned),
    _mistake("a marker goes before its records", CleanedTransactions, end=always_without_records),
    _mistake("the minimum lag is ignored", schedule, cleanable=without_lag),
    _mistake("aborted records count", CleanedTransactions, aborted_with=not_aborted),
)
