"""Goal: no number of headers occupies the event loop, in produced batches and in stored ones.

Method: small compressed batches that become millions of headers. The steps of a check or a search
are counted: each may decode a bounded number of headers. No time is measured.
"""

import tracemalloc

import pytest
import zstandard
from kio.schema.errors import ErrorCode

from gateway.wire import record_scan
from gateway.wire.batches import BatchRefused, read_header
from gateway.wire.record_check import RecordRules, check_now, check_steps
from gateway.wire.record_walk import HEADERS_MAX, STRICT_MAX, BadRecord, RecordWalk
from tests.batches import raw_batch, varint

MEBIBYTE = 1 << 20
CAP = 32 * MEBIBYTE
RULES = [
    RecordRules(CAP, keyed=False, timestamps=None),
    RecordRules(CAP, keyed=True, timestamps=None),
    RecordRules(CAP, keyed=False, timestamps=(0, 10)),
]
SMALLEST = b"\0\1"  # an empty key and no value
NOT_TEXT = b"\2\xff\1"  # the native reader refuses such a key
KEYS = {"null": b"\1", "overlong null": b"\x81\0"}


def record(at, headers, header=SMALLEST, key=b"\1"):
    body = b"\0\0" + varint(at) + key + b"\0" + varint(headers) + header * headers
    return varint(len(body)) + body


def packed(records, count=1):
    body = zstandard.compress(records)
    return raw_batch(body, count, attributes=4, base_timestamp=0, max_timestamp=9)


def counted(steps):
    """Return the number of pauses and the result."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return pauses, end.value
        pauses += 1


def refusal(batch, rules):
    header = read_header(batch)
    with pytest.raises(BatchRefused) as refused:
        if check_now(batch, header, rules) is None:
            counted(check_steps(batch, header, rules))
    return refused.value


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("rules", RULES, ids=["plain", "keyed", "timed"])
def test_a_record_of_eight_million_headers_is_refused_by_their_number(rules, key):
    batch = packed(record(0, 8_000_000, key=key))
    assert len(batch) < 4096
    refused = refusal(batch, rules)
    assert refused.code is ErrorCode.invalid_record
    assert "8000000 headers, more than the limit of 10000" in str(refused)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("header", [SMALLEST, NOT_TEXT], ids=["text", "not text"])
def test_as_many_headers_as_the_limit_are_taken_and_one_more_is_not(header, key):
    batch = packed(record(0, HEADERS_MAX, header, key))
    assert counted(check_steps(batch, read_header(batch), RULES[0]))[1] == 0
    more = packed(record(0, HEADERS_MAX + 1, header, key))
    assert refusal(more, RULES[0]).code is ErrorCode.invalid_record


@pytest.mark.parametrize("headers", [5_000, 9_999, 100])
def test_each_native_step_decodes_few_headers(headers):
    count = 1_000_000 // headers
    data = b"".join(record(at, headers) for at in range(count))
    pauses, _ = counted(RecordWalk(data, 0, count).steps())
    assert pauses >= headers * count // HEADERS_MAX - 1


@pytest.mark.parametrize("headers", [9_000, 90])
def test_each_strict_step_reads_few_headers(headers):
    count = 90_000 // headers
    data = b"".join(record(at, headers, NOT_TEXT) for at in range(count))
    pauses, _ = counted(RecordWalk(data, 0, count).steps())
    assert pauses >= headers * count // 1_000


def test_more_headers_than_the_strict_reader_may_read_are_refused():
    count = STRICT_MAX // 9_000 + 1
    data = b"".join(record(at, 9_000, NOT_TEXT) for at in range(count))
    with pytest.raises(BadRecord, match="100000 headers"):
        counted(RecordWalk(data, 0, count).steps())


def test_many_headers_are_left_to_the_check_in_parts():
    count = 20
    batch = packed(b"".join(record(at, 5_000) for at in range(count)), count)
    header = read_header(batch)
    assert check_now(batch, header, RULES[0]) is None
    assert counted(check_steps(batch, header, RULES[0]))[1] == 0


def hidden(headers):
    """Return records whose first one ends by its size before its headers do."""
    body = b"\0\0\0\1\0" + varint(headers)
    return varint(len(body)) + body + SMALLEST * headers


def peak_bytes(look):
    tracemalloc.start()
    try:
        look()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("headers", [HEADERS_MAX, 1_000_000])
def test_headers_behind_the_end_of_their_record_are_not_decoded(headers):
    batch = packed(hidden(headers))
    refused = []
    peak = peak_bytes(lambda: refused.append(refusal(batch, RULES[0])))
    assert refused[0].code is ErrorCode.invalid_record
    assert peak < 10 * MEBIBYTE  # a million decoded headers are 150 MiB
    found = []
    peak = peak_bytes(lambda: found.append(searched(batch)[1]))
    assert found == [(9, 0)]
    assert peak < 10 * MEBIBYTE


# -- stored batches --------------------------------------------------------------------------------


def searched(batch):
    return counted(record_scan.first_at_or_after(batch, 1, 0, CAP))


def test_a_search_does_not_decode_a_stored_record_of_millions_of_headers():
    batch = packed(record(0, 8_000_000))
    found = []
    peak = peak_bytes(lambda: found.append(searched(batch)[1]))
    assert found == [(9, 0)]  # what the header says
    assert peak < 3 * CAP
    newest = record_scan.record_of_timestamp_max(batch, 0, CAP)
    assert counted(newest)[1] == (9, 0)


@pytest.mark.parametrize("headers", [5_000, 9_999, 100])
def test_each_step_of_a_search_decodes_few_headers(headers):
    count = 1_000_000 // headers
    batch = packed(b"".join(record(at, headers) for at in range(count)), count)
    pauses, found = searched(batch)
    assert found is None
    assert pauses >= headers * count // (HEADERS_MAX + 1_000) - 1
