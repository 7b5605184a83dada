"""Goal: the message of many fences is read as it was written, and a damaged one is refused.

Method: Hypothesis draws requests and replies, cuts them and changes bytes.
"""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ports.bookies import FENCED_MAX, ReadReply, Status
from ledger.wire.bookie_frames import BadBookieFrame
from ledger.wire.fence_frames import (
    decode_fence_replies,
    decode_fences,
    encode_fence_replies,
    encode_fences,
)

fences = st.lists(
    st.tuples(st.integers(0, 2**63 - 1), st.binary(max_size=255)), max_size=FENCED_MAX
)
replies = st.lists(
    st.builds(
        ReadReply,
        st.sampled_from(Status),
        st.binary(max_size=300),
        st.integers(-1, 2**63 - 1),
    ),
    max_size=FENCED_MAX,
)


@given(st.text(max_size=60), fences)
def test_a_request_is_read_as_it_was_written(bookie, ledgers):
    assert decode_fences(encode_fences(bookie, ledgers)) == (bookie, ledgers)


@given(replies)
def test_replies_are_read_as_they_were_written(sent):
    assert decode_fence_replies(encode_fence_replies(sent), len(sent)) == sent


@given(fences.filter(bool), st.data())
def test_a_cut_request_is_refused_or_names_fewer_ledgers(ledgers, data):
    whole = encode_fences("b", ledgers)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        assert len(decode_fences(cut)[1]) < len(ledgers)
    except BadBookieFrame:
        pass


@given(replies, st.integers(0, 2 * FENCED_MAX), st.binary(max_size=20))
def test_replies_of_another_count_are_refused(sent, count, more):
    whole = encode_fence_replies(sent) + more
    if count == len(sent) and not more:
        return
    try:
        assert len(decode_fence_replies(whole, count)) == count
    except BadBookieFrame:
        return
    assert len(more) >= 14  # they read as one more reply


@given(st.binary(max_size=500))
def test_any_bytes_are_refused_or_read(anything):
    with contextlib.suppress(BadBookieFrame):
        read = decode_fences(anything)
        assert decode_fences(encode_fences(*read)) == read
    with contextlib.suppress(BadBookieFrame):
        assert len(decode_fence_replies(anything, 3)) == 3


def test_too_many_ledgers_are_refused():
    one = encode_fences("b", [(1, b"k")])
    with pytest.raises(BadBookieFrame):
        decode_fences(one + one[2:] * FENCED_MAX)
