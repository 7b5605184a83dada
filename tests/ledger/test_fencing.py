"""Goal: exactly the adds that may pass do, and two copies of one entry are known as such.
Method: all combinations of the guard's state; entries re-packaged with another LAC.
"""

from __future__ import annotations

from itertools import product
from zlib import crc32

import pytest
from crc32c import crc32c

from ledger.core.entry_format import DigestedBody, DigestType, EntryFormat
from ledger.core.fencing import AddDecision, FenceState, has_crc32c, same_entry
from tests.sim.bookie_world import entry_bytes


def test_only_the_right_key_passes_and_a_fence_only_recovery():
    for fenced, deleted, right, recovery in product([False, True], repeat=4):
        guard = FenceState(b"key", fenced=fenced, deleted=deleted)
        verdict = guard.check_add(b"key" if right else b"other", recovery)
        expected = AddDecision.ACCEPT
        if deleted:
            expected = AddDecision.DELETED
        elif not right:
            expected = AddDecision.WRONG_KEY
        elif fenced and not recovery:
            expected = AddDecision.FENCED
        assert verdict is expected


def test_an_unknown_key_is_whatever_comes_first_and_fences_pass_a_fence():
    assert FenceState(None).check_add(b"any", recovery=False) is AddDecision.ACCEPT
    assert FenceState(b"key", fenced=True).check_key(b"key") is AddDecision.ACCEPT
    assert FenceState(b"key").check_key(b"other") is AddDecision.WRONG_KEY


def with_crc32(lac: int, payload: bytes) -> bytes:
    head = entry_bytes(1, 5, payload, lac)[:32]
    return head + crc32(payload, crc32(head)).to_bytes(8, "big") + payload


@pytest.mark.parametrize("package", [lambda lac, p: entry_bytes(1, 5, p, lac), with_crc32])
def test_copies_differ_in_nothing_but_lac_and_digest(package):
    payload = b"p" * 50
    assert same_entry(package(3, payload), package(3, payload))
    assert same_entry(package(3, payload), package(4, payload))
    assert not same_entry(package(3, payload), package(4, b"q" + payload[1:]))
    assert not same_entry(package(3, payload), package(3, payload + b"x"))


def test_a_copy_with_a_wrong_digest_is_no_copy():
    good, other = entry_bytes(1, 5, b"p" * 50, 3), bytearray(entry_bytes(1, 5, b"p" * 50, 4))
    other[33] ^= 1
    assert not same_entry(good, bytes(other))


def test_entries_of_different_ids_or_lengths_field_are_not_one():
    assert not same_entry(entry_bytes(1, 5, b"p"), entry_bytes(1, 6, b"p"))
    assert not same_entry(entry_bytes(1, 5, b"p", 1), entry_bytes(2, 5, b"p", 1))
    grown = bytearray(entry_bytes(1, 5, b"p", 1))
    grown[31] ^= 1
    grown[32:36] = crc32c(bytes(grown[36:]), crc32c(bytes(grown[:32]))).to_bytes(4, "big")
    assert not same_entry(entry_bytes(1, 5, b"p", 1), bytes(grown))


@pytest.mark.parametrize("digest", DigestType)
def test_a_crc32c_digest_is_seen_however_the_entry_is_cut_into_buffers(digest):
    head = EntryFormat(digest, b"secret").pack(1, 5, 3, 9, [b"some payload"])
    whole = head + b"some payload"
    for first, second in product(range(len(whole) + 1), repeat=2):
        body = (whole[:first], whole[first:second], whole[max(first, second) :])
        assert has_crc32c(body) == (digest is DigestType.CRC32C)
        assert has_crc32c([memoryview(buffer) for buffer in body]) == has_crc32c(body)


@pytest.mark.parametrize("digest", DigestType)
def test_a_body_is_marked_as_digested_for_one_send_and_with_crc32c_only(digest):
    layout = EntryFormat(digest, b"secret")
    body = layout.body((layout.pack(1, 5, 3, 9, [b"payload"]), b"payload"))
    assert (type(body) is DigestedBody) == has_crc32c(body) == (digest is DigestType.CRC32C)
    marked = DigestedBody((body[0], b"damaged"))
    assert not any(
        has_crc32c(copy) for copy in (tuple(marked), list(marked), marked[:], (*marked,))
    )


def test_a_changed_bit_anywhere_breaks_the_crc32c_digest():
    whole = entry_bytes(1, 5, b"payload")
    for bit in range(len(whole) * 8):
        other = bytearray(whole)
        other[bit // 8] ^= 1 << bit % 8
        assert not has_crc32c((bytes(other[:36]), bytes(other[36:])))
    assert not has_crc32c((whole[:35],))
