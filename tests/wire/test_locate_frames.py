"""Goal: what one end of LOCATE writes, the other reads back; nothing else is believed.

Method: Hypothesis; the layout number by number; every cut, and bytes too many.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ports.bookies import LocateReply, Status
from ledger.wire.bookie_frames import BadBookieFrame
from ledger.wire.locate_frames import (
    decode_locate,
    decode_locate_reply,
    encode_locate,
    encode_locate_reply,
)

ids = st.integers(0, 2**63 - 1)
REQUEST = encode_locate("bookie-1", 7, 9)
REPLY = LocateReply(Status.OK, 3, 4096, 120)


@given(st.text(max_size=60), ids, ids)
def test_a_request_is_read_back(bookie, ledger, entry):
    assert decode_locate(encode_locate(bookie, ledger, entry)) == (bookie, ledger, entry)


@given(ids, ids, st.integers(0, 2**32 - 1), st.sampled_from(Status))
def test_a_response_is_read_back(file_id, position, length, status):
    place = (file_id, position, length) if status is Status.OK else ()
    reply = LocateReply(status, *place)
    assert decode_locate_reply(encode_locate_reply(reply)) == reply


def test_the_layout_is_the_documented_one():
    ids = [number.to_bytes(8, "big") for number in (7, 9)]
    assert b"".join([b"\x08bookie-1", *ids]) == REQUEST
    numbers = [(0, 2), (3, 8), (4096, 8), (120, 4)]
    assert encode_locate_reply(REPLY) == b"".join(n.to_bytes(size, "big") for n, size in numbers)


def test_a_request_of_another_length_is_refused():
    for wrong in [REQUEST[:cut] for cut in range(len(REQUEST))] + [REQUEST + b"\0", b"\xff"]:
        with pytest.raises(BadBookieFrame):
            decode_locate(wrong)


def test_a_request_with_a_bad_name_or_a_negative_id_is_refused():
    minus = (2**64 - 1).to_bytes(8, "big")
    for wrong in (b"\x01\xff" + bytes(16), REQUEST[:-8] + minus, REQUEST[:-16] + minus + bytes(8)):
        with pytest.raises(BadBookieFrame):
            decode_locate(wrong)


def test_a_response_of_another_length_or_with_a_place_and_a_refusal_is_refused():
    response = encode_locate_reply(REPLY)
    refused = encode_locate_reply(LocateReply(Status.NO_ENTRY, 0, 0, 1))
    for wrong in [response[:cut] for cut in range(len(response))] + [response + b"\0", refused]:
        with pytest.raises(BadBookieFrame):
            decode_locate_reply(wrong)
