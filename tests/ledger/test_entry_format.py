"""Goal: entries have BookKeeper's bytes, and no damaged or foreign entry is ever believed.

Method: vectors of the format, and Hypothesis flipping and cutting bytes.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry_format import DigestType, EntryFormat, master_key, read_header
from ledger.errors import CorruptFormat

PROTECTING = [DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C]


@pytest.mark.parametrize(
    ("password", "key"),
    [
        (b"", "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"),
        (b"passwd", "9596625852f7fafc2c9cf0f9f7f3e5995206452b"),
    ],
)
def test_the_master_key_of_a_password(password, key):
    assert master_key(password).hex() == key


@pytest.mark.parametrize(
    ("digest_type", "digest"),
    [
        (DigestType.CRC32C, "e3a5f74d"),
        (DigestType.CRC32, "0000000030a56872"),
        (DigestType.HMAC, "2c5f3dbb8c95c515351daad95c129012c5d7a5f9"),
        (DigestType.DUMMY, ""),
    ],
)
def test_the_bytes_of_a_known_entry(digest_type, digest):
    head = EntryFormat(digest_type, b"passwd").pack(1, 0, -1, 5, [b"hello"])
    ids = "00000000000000010000000000000000ffffffffffffffff0000000000000005"
    assert head.hex() == ids + digest


@given(
    st.sampled_from(list(DigestType)),
    st.lists(st.binary(max_size=40), max_size=4),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
)
def test_what_was_packed_in_parts_is_unpacked_whole(digest_type, payload, ledger, entry):
    layout = EntryFormat(digest_type, b"secret")
    body = layout.pack(ledger, entry, entry - 1, 99, payload) + b"".join(payload)
    assert layout.unpack(body, ledger, entry) == b"".join(payload)
    assert read_header(body) == (ledger, entry, entry - 1, 99)


@given(st.sampled_from(PROTECTING), st.binary(min_size=1, max_size=60), st.data())
def test_a_flipped_bit_anywhere_is_found(digest_type, payload, data):
    layout = EntryFormat(digest_type)
    body = bytearray(layout.pack(7, 3, 2, 100, [payload]) + payload)
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFormat):
        layout.unpack(body, 7, 3)


@pytest.mark.slow
@given(st.sampled_from(PROTECTING), st.binary(max_size=60), st.data())
def test_a_cut_entry_is_found(digest_type, payload, data):
    layout = EntryFormat(digest_type)
    body = layout.pack(7, 3, 2, 100, [payload]) + payload
    with pytest.raises(CorruptFormat):
        layout.unpack(body[: data.draw(st.integers(0, len(body) - 1))], 7, 3)


@pytest.mark.parametrize(("ledger", "entry"), [(8, 3), (7, 4)])
def test_a_whole_entry_of_another_place_is_refused(ledger, entry):
    layout = EntryFormat(DigestType.CRC32C)
    body = layout.pack(7, 3, 2, 1, [b"x"]) + b"x"
    with pytest.raises(CorruptFormat, match="got 7 3"):
        layout.unpack(body, ledger, entry)


def test_asking_for_the_highest_entry_takes_any_entry_id():
    layout = EntryFormat(DigestType.CRC32C)
    body = layout.pack(7, 3, 2, 1, [b"x"]) + b"x"
    assert layout.unpack(body, 7, -1) == b"x"


def test_the_payload_is_a_view_and_not_a_copy():
    layout = EntryFormat(DigestType.CRC32C)
    body = bytearray(layout.pack(7, 3, 2, 1, [b"x"]) + b"x")
    assert layout.unpack(body, 7, 3).obj is body


def test_a_header_cut_short_is_refused():
    with pytest.raises(CorruptFormat):
        read_header(b"\0" * 31)
