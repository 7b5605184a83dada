"""Goal: a sealed document is decoded unchanged or not at all. Method: every single flipped bit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import CorruptFormat
from ledger.sealed import seal, unseal

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner),
    max_leaves=5,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), VALUES))
def test_what_was_sealed_comes_back(document):
    assert unseal(seal(document), "/p") == document


def test_any_flipped_bit_is_noticed_and_the_path_named():
    sealed = seal({"name": "orders", "partitions": 6})
    for bit in range(len(sealed) * 8):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFormat, match="/gateway/x"):
            unseal(bytes(flipped), "/gateway/x")


@pytest.mark.parametrize("data", [b"", b"1", b"1 00000000", b"\xff" * 100, b"2 00000000 {}"])
def test_foreign_bytes_are_refused(data):
    with pytest.raises(CorruptFormat):
        unseal(data, "/p")
