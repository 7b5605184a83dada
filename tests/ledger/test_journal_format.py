"""Goal: a scan of a log file tells a clean end, a torn tail and rot apart, whatever the damage.
Method: files built group by group in memory, damaged at every kind of place, random cuts and flips
by Hypothesis against the list of groups that were written.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.core.journal_format import (
    BLOCK_BYTES,
    GROUP_HEADER_BYTES,
    CorruptRange,
    FileEnd,
    JournalGroup,
    LogPosition,
    RecordType,
    align,
    check_end,
    check_file_header,
    encode_file_header,
    encode_group_header,
    encode_record_header,
    file_name,
    padding,
    parse_file_name,
    records_of,
    salt_of,
    scan_file,
)
from ledger.errors import CorruptFormat

INSTANCE = bytes(range(16))
SALT = salt_of(INSTANCE)
FILE_ID = 7


def group_bytes(position: int, bodies: list[bytes], durable: LogPosition, salt=SALT) -> bytes:
    payload: list[bytes] = []
    for number, body in enumerate(bodies):
        payload += [encode_record_header(RecordType.ADD, 3, number, len(body)), body]
    length = sum(map(len, payload))
    start = LogPosition(FILE_ID, position)
    header = encode_group_header(salt, start, durable, len(bodies), length, payload)
    return b"".join([header, *payload, padding(length)])


def log_bytes(groups: list[list[bytes]], room: int = 0) -> bytearray:
    """A file of these groups, each built when the one before it was synced, and spare zeros."""
    log = bytearray(encode_file_header(INSTANCE, FILE_ID))
    for bodies in groups:
        log += group_bytes(len(log), bodies, LogPosition(FILE_ID, len(log)))
    return log + bytes(room)


def scan(log: bytes, start: int = BLOCK_BYTES) -> tuple[list[JournalGroup], FileEnd]:
    found: list[JournalGroup] = []
    reading = scan_file(FILE_ID, start, len(log), SALT, found.append)
    try:
        position, size = next(reading)
        while True:
            position, size = reading.send(bytes(log[position : position + size]))
    except StopIteration as stop:
        return found, stop.value


def bodies_of(groups: list[JournalGroup]) -> list[list[bytes]]:
    return [[bytes(record.body) for record in records_of(group)] for group in groups]


GROUPS = [[b"a" * 10, b"b" * 5000], [b""], [b"c" * 20_000, b"d"], [b"e" * 100]]


def test_what_was_written_is_read_back_group_by_group():
    found, end = scan(log_bytes(GROUPS))
    assert bodies_of(found) == GROUPS
    assert end == FileEnd(len(log_bytes(GROUPS)), False, ())


def test_a_record_names_its_ledger_its_entry_and_the_place_of_its_body():
    log = log_bytes(GROUPS)
    record = list(records_of(scan(log)[0][0]))[1]
    assert (record.type, record.ledger, record.entry) == (RecordType.ADD, 3, 1)
    assert log[record.position : record.position + 5000] == b"b" * 5000


def test_zeros_after_the_last_group_are_a_clean_end():
    log = log_bytes(GROUPS, room=100_000)
    found, end = scan(log)
    assert len(found) == 4
    assert end == FileEnd(len(log) - 100_000, False, ())
    assert check_end(end, FILE_ID, [found[-1].header.durable]) is None


def test_a_torn_last_group_is_a_tail_to_cut():
    log = log_bytes(GROUPS)
    last = scan(log)[0][-1].header.position
    log[last + 60] ^= 1
    found, end = scan(log)
    assert bodies_of(found) == GROUPS[:3]
    assert end == FileEnd(last, True, ())
    assert check_end(end, FILE_ID, [group.header.durable for group in found]) is None


def test_a_bad_group_before_a_good_one_is_rot_and_the_rest_is_still_read():
    log = log_bytes(GROUPS)
    second = scan(log)[0][1].header
    log[second.position + 50] ^= 1
    found, end = scan(log)
    assert bodies_of(found) == [GROUPS[0], *GROUPS[2:]]
    assert end.corrupt == (CorruptRange(FILE_ID, second.position, second.end),)
    assert not end.torn


def test_a_bad_last_group_that_another_file_knew_as_durable_is_rot():
    log = log_bytes(GROUPS)
    last = scan(log)[0][-1].header
    log[last.position] ^= 1
    _, end = scan(log)
    assert check_end(
        end, FILE_ID, [LogPosition(FILE_ID, last.end), LogPosition(8, 0)]
    ) == CorruptRange(FILE_ID, last.position, last.end)


def test_a_truncated_file_is_rot_when_more_was_durable():
    log = log_bytes(GROUPS)[: 2 * BLOCK_BYTES + 5]
    found, end = scan(log)
    assert found == []
    assert check_end(end, FILE_ID, [LogPosition(FILE_ID, 3 * BLOCK_BYTES)]) is not None


@pytest.mark.parametrize("change", ["salt", "place", "file"])
def test_groups_of_another_store_another_place_or_another_file_never_pass(change):
    durable = LogPosition(FILE_ID, BLOCK_BYTES)
    log = bytearray(encode_file_header(INSTANCE, FILE_ID))
    if change == "salt":
        log += group_bytes(BLOCK_BYTES, [b"x"], durable, salt=salt_of(bytes(16)))
    elif change == "place":
        log += group_bytes(5 * BLOCK_BYTES, [b"x"], durable)
    else:
        header = encode_group_header(SALT, LogPosition(6, BLOCK_BYTES), durable, 0, 0, [])
        log += header + padding(0)
    assert scan(log)[0] == []


def test_a_group_inside_an_entry_is_not_taken_for_one():
    """The payload carries a perfect group for the place where it will lie."""
    forged = group_bytes(
        2 * BLOCK_BYTES, [b"forged"], LogPosition(9, 9), salt=salt_of(b"guess" * 3)
    )
    body = bytes(BLOCK_BYTES - GROUP_HEADER_BYTES - 24) + forged
    log = log_bytes([[body]])
    log[BLOCK_BYTES + 60] ^= 1  # the carrier is torn, so its inside is looked at
    found, end = scan(log)
    assert found == []
    assert end.position == BLOCK_BYTES
    assert end.torn


@pytest.mark.parametrize("position", [0, 9, 14, 20, 35])
def test_a_damaged_file_header_is_refused(position):
    block = bytearray(encode_file_header(INSTANCE, FILE_ID))
    check_file_header(block, INSTANCE, FILE_ID)
    block[position] ^= 1
    with pytest.raises(CorruptFormat, match="log-0000000000000007"):
        check_file_header(block, INSTANCE, FILE_ID)


def test_the_file_header_of_another_instance_or_file_is_refused():
    with pytest.raises(CorruptFormat, match="another"):
        check_file_header(encode_file_header(bytes(16), FILE_ID), INSTANCE, FILE_ID)
    with pytest.raises(CorruptFormat, match="another"):
        check_file_header(encode_file_header(INSTANCE, 8), INSTANCE, FILE_ID)
    with pytest.raises(CorruptFormat, match="shorter"):
        check_file_header(b"", INSTANCE, FILE_ID)


def test_file_names_round_trip_and_strangers_are_not_log_files():
    assert parse_file_name(file_name(2**63)) == 2**63
    for name in ("log-", "log-1", "log-000000000000000g", "LOG-0000000000000001", "index",
                 "log-00000000000000AB", "log-+000000000000001"):  # fmt: skip
        assert parse_file_name(name) is None


def test_records_that_do_not_fill_their_group_are_said_to_be_corrupt():
    payload = [encode_record_header(RecordType.ADD, 1, 1, 50), b"short"]
    start = LogPosition(FILE_ID, BLOCK_BYTES)
    length = sum(map(len, payload))
    log = encode_file_header(INSTANCE, FILE_ID) + b"".join(
        [encode_group_header(SALT, start, start, 1, length, payload), *payload, padding(length)]
    )
    (group,), _ = scan(log)
    with pytest.raises(CorruptFormat, match="4096"):
        list(records_of(group))


BODIES = st.lists(st.binary(max_size=40) | st.integers(0, 9000).map(bytes), min_size=1, max_size=4)


@given(st.lists(BODIES, max_size=6), st.integers(0, 20_000), st.data())
@settings(max_examples=150, deadline=None)
def test_any_one_flip_loses_at_most_one_group_and_is_never_silent(groups, room, data):
    log = log_bytes(groups, room)
    whole, clean = scan(log)
    assert bodies_of(whole) == groups
    assert not clean.torn
    start = data.draw(st.integers(BLOCK_BYTES, max(BLOCK_BYTES, len(log) - 1)))
    if start >= len(log):
        return
    log[start] ^= 1 << data.draw(st.integers(0, 7))
    found, end = scan(log)
    hit = [g for g in whole if g.header.position <= start < g.header.position
           + GROUP_HEADER_BYTES + g.header.length]  # fmt: skip
    assert bodies_of(found) == bodies_of([group for group in whole if group not in hit])
    if hit and hit[0] is not whole[-1]:
        assert end.corrupt
    elif hit:
        assert end.position == hit[0].header.position
        assert end.torn


@given(st.lists(BODIES, min_size=1, max_size=5), st.data())
@settings(max_examples=100, deadline=None)
def test_any_prefix_of_the_last_group_reads_as_the_groups_before_it(groups, data):
    log = log_bytes(groups)
    whole, _ = scan(log)
    last = whole[-1].header
    kept = data.draw(st.integers(last.position, last.position + GROUP_HEADER_BYTES + last.length))
    torn = log[:kept] + bytes(len(log) - kept)
    found, end = scan(torn)
    complete = bytes(torn) == bytes(log)
    assert bodies_of(found) == (groups if complete else groups[:-1])
    assert end.corrupt == ()
    assert end.position == (last.end if complete else last.position)


@given(st.integers(0, 10**9))
def test_padding_ends_on_a_boundary(length):
    end = GROUP_HEADER_BYTES + length + len(padding(length))
    assert end == align(GROUP_HEADER_BYTES + length)
