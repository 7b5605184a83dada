"""Goal: format("ledger") in read_committed has exactly the records that a stock consumer gets.

Method: one gateway with transactions, and librdkafka's transactional producers. The source is read
as its tasks read it, in many slices and segments, without a JVM. A stock consumer says what is
committed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.pipelines.direct.committed import AbortedBatches, AbortedPart
from gateway.pipelines.direct.options import parse
from gateway.pipelines.direct.stream import LedgerStreamReader
from gateway.pipelines.shared.errors import JobError
from gateway.wire import batches
from gateway.wire.end_markers import encode_marker
from tests.peers.gateway import Gateway
from tests.pipelines.transactional_rig import (
    Writer,
    consumed,
    create,
    plain,
    read_direct,
    transactional_gateway,
)

pytestmark = [pytest.mark.compat, pytest.mark.proof]

SLICE = {"sliceBytes": 100_000}
WIDE = 40_000  # bytes of a value, so that a few transactions fill a segment


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with transactional_gateway(tmp_path_factory.mktemp("committed")) as gateway:
        yield gateway


def values(name: str, count: int = 3, size: int = 20) -> list[bytes]:
    return [f"{name} {n} ".encode().ljust(size, b".") for n in range(count)]


def test_aborted_records_are_left_out_over_many_segments_and_slices(gateway: Gateway) -> None:
    topic = create(gateway, "segments", **{"segment.bytes": str(1 << 20)})
    chance = random.Random(7)
    writers = [Writer(gateway, f"segments-{n}") for n in range(4)]
    kept: list[bytes] = []
    long = values("long, aborted", 2)
    writers[3].begin(topic, long)  # ends segments after it has begun
    for turn in range(40):
        mine, commits = values(f"turn {turn}", 3, WIDE), chance.random() < 0.6
        writer = writers[turn % 3].begin(topic, mine)
        if turn % 10 == 9:
            plain(gateway, topic, values(f"plain {turn}"))
            kept += values(f"plain {turn}")
        if commits:
            writer.commit()
            kept += mine
        else:
            writer.abort()
    writers[3].abort()
    committed = consumed(gateway, topic, len(kept))
    assert sorted(value for _, value in committed) == sorted(kept)
    assert read_direct(gateway, topic, **SLICE) == committed
    assert read_direct(gateway, topic) == committed
    everything = read_direct(gateway, topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert set(committed) < set(everything)
    assert {each for each in everything if each[1] in long} == set(everything[:2])


def test_a_part_of_the_offsets_has_the_committed_part_of_its_records(gateway: Gateway) -> None:
    topic = create(gateway, "parts", **{"segment.bytes": str(1 << 20)})
    writer, other = Writer(gateway, "parts-1"), Writer(gateway, "parts-2")
    kept = 0
    for turn in range(12):
        writer.begin(topic, values(f"a {turn}", 3, WIDE))
        other.begin(topic, values(f"b {turn}", 2, WIDE))
        writer.abort() if turn % 3 else writer.commit()
        other.abort() if turn % 2 else other.commit()
        kept += (0 if turn % 3 else 3) + (0 if turn % 2 else 2)
    committed = consumed(gateway, topic, kept)
    end = committed[-1][0] + 1
    for first in range(0, end, 9):
        for last in (first + 2, end):
            places = {"startingOffsets": first, "endingOffsets": min(last, end)}
            given = {name: json.dumps({topic: {"0": at}}) for name, at in places.items()}
            wanted = [each for each in committed if first <= each[0] < last]
            assert read_direct(gateway, topic, **given, **SLICE) == wanted, (first, last)


def test_a_read_ends_where_a_transaction_is_open(gateway: Gateway) -> None:
    topic = create(gateway, "open")
    plain(gateway, topic, values("before"))
    writer = Writer(gateway, "open-1").begin(topic, values("open"))
    plain(gateway, topic, values("behind"))
    before = [(n, value) for n, value in enumerate(values("before"))]
    assert read_direct(gateway, topic) == before
    beyond = {"endingOffsets": json.dumps({topic: {"0": 5}})}
    with pytest.raises(JobError, match="ends at 3, before 5: a transaction that began there"):
        read_direct(gateway, topic, **beyond)
    writer.commit()
    assert read_direct(gateway, topic) == consumed(gateway, topic, 9)


def test_a_stream_passes_an_open_transaction_once_it_has_ended(gateway: Gateway) -> None:
    topic = create(gateway, "stream")
    plain(gateway, topic, values("before"))
    writer = Writer(gateway, "stream-1").begin(topic, values("open", 2))
    given = {"metadata": gateway.ledgers, "path": topic, "startingOffsets": "earliest"}
    reader = LedgerStreamReader(parse(given | {"isolation": "read_committed"}, streaming=True))
    try:
        start = reader.initialOffset()
        first = reader.latestOffset()
        assert offset_of(first, topic) == 3
        plain(gateway, topic, values("behind", 1))
        assert offset_of(reader.latestOffset(), topic) == 3
        assert [row[1] for row in rows(reader, start, first)] == values("before")
        writer.write(topic, values("more", 1))
        writer.abort()
        last = reader.latestOffset()
        assert offset_of(last, topic) == 8
        assert rows(reader, first, last) == [(5, values("behind", 1)[0])]
    finally:
        reader.stop()


def offset_of(offsets: Any, topic: str) -> int:
    return offsets[topic]["0"]


def rows(reader: LedgerStreamReader, start: Any, end: Any) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for partition in reader.partitions(start, end):
        for part in reader.read(partition):
            found += zip(part["offset"].to_pylist(), part["value"].to_pylist(), strict=True)
    return found


def test_the_level_has_two_names_and_one_value() -> None:
    given = {"metadata": "grpc://127.0.0.1:1", "path": "t"}
    assert not parse(given).committed
    for name in ("isolation", "kafka.isolation.level"):
        assert parse({**given, name: "read_committed"}).committed
        with pytest.raises(JobError, match="must be read_committed or read_uncommitted"):
            parse({**given, name: "serializable"})
    levels = {"isolation": "read_committed", "kafka.isolation.level": "read_uncommitted"}
    with pytest.raises(JobError, match="differ"):
        parse({**given, **levels})


def at(offset: int, producer_id: int, attributes: int) -> bytes:
    """Return the header of a batch, as far as the filter reads it."""
    data = bytearray(encode_marker(producer_id, 0, 0, 0, commit=True))
    data[:8] = offset.to_bytes(8, "big")
    data[21:23] = attributes.to_bytes(2, "big")
    return bytes(data)


def test_only_batches_of_that_producer_within_the_transaction_are_aborted() -> None:
    aborted = AbortedBatches(
        [AbortedPart(5, 10, 20), AbortedPart(5, 40, 50), AbortedPart(6, 12, 90)]
    )
    of_5 = [n for n in range(100) if aborted.hold(at(n, 5, batches.TRANSACTIONAL))]
    assert of_5 == [*range(10, 20), *range(40, 50)]
    assert not any(aborted.hold(at(n, 5, 0)) for n in range(100))
    assert not any(aborted.hold(at(n, 7, batches.TRANSACTIONAL)) for n in range(100))
    assert aborted.hold(at(89, 6, batches.TRANSACTIONAL))
