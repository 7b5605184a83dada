"""Goal: what is written of a topic's owners is what is read, changed or not, and rot is noticed.

Method: Hypothesis against a dumb twin, a list of (owner, epoch).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.ownership import FORMAT_1, NOBODY, PARTITIONS_MAX, Incarnation, Owners
from ledger.errors import CorruptFormat
from ledger.ports.metadata import NODE_BYTES_MAX

HOLDERS = [NOBODY, *(Incarnation(node % 3, f"{node:032x}") for node in range(6))]
holders = st.sampled_from(HOLDERS)
changes = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 12), holders, max_size=5),
        st.dictionaries(st.integers(0, 12), st.integers(0, 2**31 - 3), max_size=3),
    ),
    max_size=8,
)


def after(steps):
    """The owners and their twin."""
    owners, twin = Owners(), []
    for new, epochs in steps:
        twin += [(NOBODY, -1)] * (max(new, default=-1) + 1 - len(twin))
        for partition, owner in new.items():
            twin[partition] = (owner, -1)
        known = {p: epoch for p, epoch in epochs.items() if p < len(twin)}
        for partition, epoch in known.items():
            twin[partition] = (twin[partition][0], epoch)
        owners = owners.changed(new, known)
    return owners, twin


@given(changes)
def test_owners_are_what_a_list_of_them_would_be(steps):
    owners, twin = after(steps)
    assert owners.rows() == twin
    assert [(owners.owner(p), owners.epoch(p)) for p in range(len(twin))] == twin
    assert owners.owner(len(twin)) == NOBODY
    for holder in HOLDERS:
        assert owners.owned_by(holder) == [p for p, (who, _) in enumerate(twin) if who == holder]


@pytest.mark.slow
@given(changes, st.sets(holders), st.integers(0, 16))
def test_free_is_what_nobody_who_lives_has(steps, gone, partitions):
    owners, twin = after(steps)
    lost = gone | {NOBODY}
    padded = [*twin, *[(NOBODY, -1)] * partitions][:partitions]
    free = [partition for partition, (who, _) in enumerate(padded) if who in lost]
    assert owners.free(partitions, gone.__contains__) == free


@given(changes)
def test_what_was_written_is_read(steps):
    owners, twin = after(steps)
    read = Owners.decode(owners.encode(), "/owners")
    assert read == owners
    assert set(read.holders) == {NOBODY, *(who for who, _ in twin)}


def last_epochs(owners, count=13):
    return [owners.last_epoch(partition, first=0) for partition in range(count)]


@given(changes)
def test_the_last_epoch_of_a_partition_stays_known_while_a_new_owner_opens_it(steps):
    twin = [0] * 13  # the first epoch
    owners = Owners()
    for new, epochs in steps:
        known = {p: epoch for p, epoch in epochs.items() if p < max(len(owners), *new, 0)}
        owners = owners.changed(new, known)
        for partition, epoch in known.items():
            twin[partition] = epoch
    assert last_epochs(owners) == last_epochs(Owners.decode(owners.encode(), "/owners")) == twin


@given(changes)
def test_the_format_before_has_no_last_epochs_and_a_reader_remembers_those_it_saw(steps):
    owners, twin = after(steps)
    older = owners.encode(FORMAT_1)
    read = Owners.decode(older, "/owners")
    assert read.rows() == twin
    assert last_epochs(read, len(twin)) == [epoch for _, epoch in twin]
    assert read.encode(FORMAT_1) == older
    remembered = read.remembering(owners)
    assert remembered.rows() == twin
    assert last_epochs(remembered) == last_epochs(owners)


@given(changes, st.data())
def test_a_flipped_bit_is_noticed(steps, data):
    written = bytearray(after(steps)[0].encode())
    bit = data.draw(st.integers(0, 8 * len(written) - 1))
    written[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFormat, match="/owners"):
        Owners.decode(bytes(written), "/owners")


@given(changes, st.data())
def test_a_part_of_it_is_refused(steps, data):
    written = after(steps)[0].encode()
    size = data.draw(st.integers(0, len(written) - 1))
    with pytest.raises(CorruptFormat):
        Owners.decode(written[:size], "/owners")


def test_a_newer_format_is_refused():
    written = bytearray(Owners().encode())
    written[2] += 1
    with pytest.raises(CorruptFormat, match="format 3"):
        Owners.decode(bytes(written), "/owners")


def test_the_largest_topic_fits_into_a_node():
    many = [Incarnation(node, f"{node:032x}") for node in range(1_000)]
    owners = Owners().changed({p: many[p % 1_000] for p in range(PARTITIONS_MAX)})
    assert len(owners.encode()) < NODE_BYTES_MAX
