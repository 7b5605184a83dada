"""Goal: the start of a stream and the base of its epochs are read as written; an earlier release
refuses a base, and this one refuses what it does not know.

Method: Hypothesis and hand-made bytes.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.stream_start import StreamStart, decode_start
from ledger.errors import CorruptFormat
from ledger.sealed import seal

starts = st.builds(StreamStart, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))


@given(starts)
def test_a_start_is_read_as_written(start):
    assert decode_start(start.encode(), "/start") == start


@given(starts)
def test_an_earlier_release_reads_a_start_without_a_base_and_refuses_any_other(start):
    """Such a release takes the bytes for a number, and reports a corrupt node otherwise."""
    try:
        number = int(start.encode())
    except ValueError:
        number = None
    assert number == (None if start.epoch_base else start.sequence_id)


@given(starts, st.data())
def test_a_flipped_bit_of_a_base_is_noticed(start, data):
    written = bytearray(start._replace(epoch_base=start.epoch_base or 1).encode())
    bit = data.draw(st.integers(0, 8 * len(written) - 1))
    written[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFormat, match="/start"):
        decode_start(bytes(written), "/start")


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"x",
        seal({"start": 5}),
        seal({"start": 5, "epoch_base": 0}),
        seal({"start": -1, "epoch_base": 1}),
        seal({"start": 5, "epoch_base": 1.0}),
        seal({"start": "5", "epoch_base": 1}),
        seal({"start": True, "epoch_base": 1}),
        seal({"start": 5, "epoch_base": 1, "more": 1}),
        b"2" + seal({"start": 5, "epoch_base": 1})[1:],
    ],
)
def test_what_is_no_start_is_refused(stored):
    with pytest.raises(CorruptFormat, match="/start"):
        decode_start(stored, "/start")
