"""An explanation compared with a walk over the bookies' files.

The walk follows docs/formats/log-file.md and docs/formats/segment.md, and uses no code of the
product. Records are decoded by aiokafka.
"""

from __future__ import annotations

from struct import unpack_from
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch
from crc32c import crc32c

from tests.ledger.log_walk import newest, walk

_CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class WalkedBatch(NamedTuple):
    """A record set in an entry, and the batch in it."""

    position: int  # in its segment, from 1
    count: int  # offsets that the set covers
    slot: int
    batch: bytes


def is_sound(body):
    """Whether the digest of an entry matches."""
    return crc32c(body[36:], crc32c(body[:32])) == int.from_bytes(body[32:36], "big")


def batches_in(body):
    """The batches of an entry, by its bytes."""
    at, slot, found = 36 + 13, 0, []
    while at < len(body):
        metadata, _, length = unpack_from(">qqi", body, at)
        begin = at + 20
        if metadata & 4:
            _, count, _, stored = unpack_from(">iiii", body, begin)
            data = bytes(body[begin + 16 : begin + 16 + stored])
            found.append(WalkedBatch(metadata >> 16 & 0xFFFFFFFF, count, slot, data))
            slot += count
        else:
            slot += 1
        at = begin + length
    return found


def check_explanation(found, files):
    """Compare an explanation with the log files of each bookie, `{bookie: {name: bytes}}`."""
    ledger, entry = found["ledger"]["ledger"], found["ledger"]["entry"]
    bodies = []
    for row in found["copies"]:
        place = newest(files[row["bookie"]], ledger, entry)
        away = row["status"] == "away"
        held = None if away else place is not None and is_sound(place.body)
        assert (row["has"] == "yes") == bool(held), row
        assert (row["has"] == "unknown") == away, row
        named = (row["file"], row["position"], row["length"])
        assert named == ((None,) * 3 if away or place is None else place[:3]), row
        bodies += [place.body] if held else []
    assert bodies, "no copy to compare with"
    assert all(body == bodies[0] for body in bodies)
    _check_batch(found, bodies[0])
    _check_ledger(found, files)


def _check_batch(found, body):
    offset, start = found["record"]["offset"], found["segment"]["start_offset"]
    (walked,) = [
        each
        for each in batches_in(body)
        if each.position <= offset - start + 1 < each.position + each.count
    ]
    dlsn = found["segment"]["dlsn"]
    assert dlsn["slot"] == walked.slot + offset - start + 1 - walked.position
    assert dlsn["entry"] == found["ledger"]["entry"] == int.from_bytes(body[8:16], "big")
    (base, _, epoch, _, crc, attributes, delta, _, last_ms, producer, producer_epoch, sequence) = (
        unpack_from(">qiibIhiqqqhi", walked.batch)
    )
    count = unpack_from(">i", walked.batch, 57)[0]
    batch = found["batch"]
    assert (batch["base_offset"], batch["last_offset"]) == (base, base + delta)
    assert (batch["records"], batch["bytes"]) == (count, len(walked.batch))
    assert (batch["codec"], batch["leader_epoch"]) == (_CODECS[attributes & 7], epoch)
    assert batch["max_timestamp"] == last_ms
    assert batch["crc"] == ("correct" if crc32c(walked.batch[21:]) == crc else "wrong")
    known = producer >= 0
    assert batch["producer_id"] == (producer if known else None)
    assert batch["producer_epoch"] == (producer_epoch if known else None)
    if known and sequence >= 0:
        assert (batch["base_sequence"], batch["sequence"]) == (sequence, sequence + offset - base)
    _check_record(found, walked.batch)
    transaction = found["transaction"]
    assert (transaction is None) == (attributes & 0x30 == 0)
    if transaction is not None:
        assert (transaction["state"] == "marker") == bool(attributes & 0x20)


def _check_record(found, batch):
    record = found["record"]
    (stored,) = [each for each in DefaultRecordBatch(batch) if each.offset == record["offset"]]
    assert record["timestamp"] == stored.timestamp
    assert record["key_bytes"] == (None if stored.key is None else len(stored.key))
    assert record["value_bytes"] == (None if stored.value is None else len(stored.value))
    assert record["headers"] == len(stored.headers)


def _check_ledger(found, files):
    """The LAC is neither below those that entries carry, nor above the last entry."""
    ledger = found["ledger"]
    entries = {}
    for each in files.values():
        for (of, entry), places in walk(each).items():
            if of == ledger["ledger"]:
                entries[entry] = int.from_bytes(places[-1].body[16:24], "big", signed=True)
    assert max(entries.values()) <= ledger["last_add_confirmed"] <= max(entries)
    proof = found["acknowledged"]["proof"]
    assert (proof == "LAC >= entry") == (ledger["last_add_confirmed"] >= ledger["entry"])
