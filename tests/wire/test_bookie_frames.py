"""Goal: what one end of a bookie's stream writes, the other reads back; nothing else is believed.
Method: a dumb twin that writes the layout number by number; every cut, and every byte changed.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import (
    AddBatch,
    AddBatchWriter,
    AddRequest,
    AddStatusRange,
    BadBookieFrame,
    ReadOp,
    ReadRequest,
    ReadResponse,
    decode_add_batch,
    decode_add_statuses,
    decode_hello,
    decode_read_requests,
    decode_read_responses,
    decode_welcome,
    encode_add_statuses,
    encode_hello,
    encode_read_requests,
    encode_read_responses,
    encode_welcome,
    response_bytes,
)

ids = st.integers(0, 2**63 - 1)
lacs = st.integers(-1, 2**63 - 1)
numbers = st.integers(0, 2**64 - 1)
statuses = st.sampled_from(Status)
bodies = st.lists(st.binary(max_size=40), max_size=4)
keys = st.sampled_from([b"", b"k" * 20, b"o" * 20, b"z" * 255])
adds = st.lists(st.tuples(st.booleans(), keys, ids, ids, bodies), max_size=6)
runs = st.lists(st.builds(AddStatusRange, numbers, st.integers(0, 2**32 - 1), statuses), max_size=6)
answers = st.lists(st.builds(ReadResponse, numbers, statuses, lacs, bodies), max_size=4)
questions = st.lists(
    st.builds(
        ReadRequest,
        st.sampled_from(ReadOp),
        numbers,
        ids,
        lacs,
        lacs,
        st.integers(0, 2**32 - 1),
        st.binary(max_size=30),
    ),
    max_size=4,
)


# The twin: the layout as the module describes it.


def u(size, value):
    return value.to_bytes(size, "big")


def i64(value):
    return value.to_bytes(8, "big", signed=True)


def twin_adds(first, adds):
    used = list(dict.fromkeys(key for _, key, _, _, _ in adds))
    message = u(1, 1) + u(1, 3) + u(8, first) + u(4, len(adds)) + u(2, len(used))
    for key in used:
        message += u(1, len(key)) + key
    for recovery, key, ledger, entry, body in adds:
        length = len(b"".join(body))
        message += u(1, recovery) + u(2, used.index(key)) + i64(ledger) + i64(entry)
        message += u(4, length)
    for *_, body in adds:
        message += b"".join(body)
    return message


def twin_questions(questions):
    message = u(1, 1) + u(1, 5)
    for ask, number, ledger, first, last, bound, key in questions:
        message += u(1, ask) + u(8, number) + i64(ledger) + i64(first) + i64(last)
        message += u(4, bound) + u(1, len(key)) + key
    return message


def twin_answers(answers):
    message = u(1, 1) + u(1, 6)
    for number, status, lac, bodies in answers:
        message += u(8, number) + u(2, status) + i64(lac) + u(4, len(bodies))
        message += b"".join(u(4, len(body)) for body in bodies) + b"".join(bodies)
    return message


def write_adds(first, adds):
    writer = AddBatchWriter(first)
    for recovery, key, ledger, entry, body in adds:
        writer.add(ledger, entry, key, body, len(b"".join(body)), recovery)
    return writer


@given(numbers, adds)
def test_adds_are_written_as_the_layout_says_and_read_back(first, adds):
    writer = write_adds(first, adds)
    message = writer.encode()
    assert message == twin_adds(first, adds)
    assert writer.size == len(message)
    assert writer.count == len(adds)
    assert writer.body_bytes == sum(len(b"".join(body)) for *_, body in adds)
    expected = [
        AddRequest(recovery, key, ledger, entry, b"".join(body))
        for recovery, key, ledger, entry, body in adds
    ]
    assert decode_add_batch(message) == AddBatch(first, expected)


@given(runs)
def test_answers_to_adds_are_read_back(runs):
    message = encode_add_statuses(runs)
    assert message == u(1, 1) + u(1, 4) + b"".join(u(8, a) + u(4, n) + u(2, s) for a, n, s in runs)
    assert decode_add_statuses(message) == runs


@given(questions)
def test_questions_are_written_as_the_layout_says_and_read_back(questions):
    message = encode_read_requests(questions)
    assert message == twin_questions(questions)
    assert decode_read_requests(message) == questions


@given(answers)
def test_answers_to_questions_are_written_as_the_layout_says_and_read_back(answers):
    message = encode_read_responses(answers)
    assert message == twin_answers(answers)
    assert len(message) == 2 + sum(map(response_bytes, answers))
    assert decode_read_responses(message) == answers


@given(st.text(max_size=60))
def test_a_hello_names_the_bookie(name):
    assert decode_hello(encode_hello(name)) == name


@given(statuses, st.integers(0, 2**32 - 1))
def test_a_welcome_says_status_and_largest_entry(status, entry_bytes_max):
    assert decode_welcome(encode_welcome(status, entry_bytes_max)) == (status, entry_bytes_max)


ADDS = twin_adds(7, [(False, b"k" * 20, 1, 2, [b"abc"]), (True, b"o", 3, 4, [b"defgh"])])
ADDED = encode_add_statuses([AddStatusRange(7, 2, Status.OK), AddStatusRange(9, 1, Status.FENCED)])
QUESTIONS = twin_questions(
    [ReadRequest(ReadOp.READ_MANY, 1, 2, 3, 4, 5, b"key"), ReadRequest(ReadOp.READ, 2)]
)
ANSWERS = twin_answers(
    [ReadResponse(1, Status.OK, 5, [b"ab", b"c"]), ReadResponse(2, Status.NO_ENTRY)]
)
WELCOME = encode_welcome(Status.OK, 1000)
MESSAGES = {
    "adds": (decode_add_batch, ADDS),
    "added": (decode_add_statuses, ADDED),
    "questions": (decode_read_requests, QUESTIONS),
    "answers": (decode_read_responses, ANSWERS),
    "welcome": (decode_welcome, WELCOME),
}
each_message = pytest.mark.parametrize("name", MESSAGES)


@each_message
def test_a_message_cut_anywhere_is_refused_or_says_less(name):
    decode, message = MESSAGES[name]
    whole = decode(message)
    for cut in range(len(message)):
        try:
            part = decode(message[:cut])
        except BadBookieFrame:
            continue
        assert name in ("added", "questions", "answers"), "these end where a record ends"
        assert part == whole[: len(part)]
        assert len(part) < len(whole)


@each_message
def test_a_changed_byte_is_refused_or_read_and_nothing_else(name):
    decode, message = MESSAGES[name]
    refused = 0
    for place in range(len(message)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = message[:place] + bytes([value]) + message[place + 1 :]
            try:
                decode(changed)
            except BadBookieFrame:
                refused += 1
    assert refused


@each_message
@given(data=st.binary(max_size=80))
def test_random_bytes_are_refused_or_read_and_nothing_else(name, data):
    decode, message = MESSAGES[name]
    kind = type(decode(message))
    for tail in (data, message[:2] + data):
        try:
            assert type(decode(tail)) is kind
        except BadBookieFrame:
            pass


@each_message
def test_another_version_is_refused(name):
    decode, message = MESSAGES[name]
    with pytest.raises(BadBookieFrame, match="version 2"):
        decode(b"\x02" + message[1:])


@each_message
def test_a_message_of_another_kind_is_refused(name):
    decode, message = MESSAGES[name]
    with pytest.raises(BadBookieFrame):
        decode(message[:1] + b"\x09" + message[2:])


@pytest.mark.parametrize(
    "message",
    [
        u(1, 1) + u(1, 3) + u(8, 0) + u(4, 2**32 - 1) + u(2, 0),  # four billion adds
        u(1, 1) + u(1, 3) + u(8, 0) + u(4, 1) + u(2, 2**16 - 1),  # and keys
        ADDS + b"x",  # something after the last add
        twin_adds(0, [(2, b"k", 1, 1, [b"abc"])]),  # an unknown flag
        twin_adds(0, [(False, b"k", -1, 1, [b"abc"])]),  # negative ids
        twin_adds(0, [(False, b"k", 1, -1, [b"abc"])]),
        u(1, 1) + u(1, 3) + u(8, 0) + u(4, 1) + u(2, 0) + bytes(3) + bytes(20),  # no such key
    ],
)
def test_adds_that_claim_what_is_not_there_are_refused(message):
    with pytest.raises(BadBookieFrame):
        decode_add_batch(message)


@pytest.mark.parametrize(
    "question",
    [
        ReadRequest(ReadOp.READ, 1, ledger=-1),
        ReadRequest(ReadOp.READ, 1, first=-2),
        ReadRequest(ReadOp.READ_MANY, 1, last=-2),
        ReadRequest(9, 1),
    ],
)
def test_questions_that_nobody_may_ask_are_refused(question):
    with pytest.raises(BadBookieFrame):
        decode_read_requests(twin_questions([question]))


def test_answers_that_claim_what_is_not_there_are_refused():
    with pytest.raises(BadBookieFrame):
        decode_read_responses(u(1, 1) + u(1, 6) + u(8, 1) + u(2, 0) + i64(0) + u(4, 2**32 - 1))
    with pytest.raises(BadBookieFrame):
        decode_read_responses(u(1, 1) + u(1, 6) + u(8, 1) + u(2, 999) + i64(0) + u(4, 0))


def test_a_name_that_is_no_text_or_too_long_is_refused():
    with pytest.raises(BadBookieFrame):
        decode_hello(u(1, 1) + u(1, 1) + b"\xff\xfe")
    with pytest.raises(BadBookieFrame):
        decode_hello(u(1, 1) + u(1, 1) + b"a" * 256)
