"""Goal: a log of committed offsets with lost entries loads what is left once an operator gave the
entries up, and says so.

Method: a simulated cluster on virtual time whose bookies forget entries; the acceptance is stored
as a command stores it. The document with random and with hostile content.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.client.accepted_entries import (
    ACCEPTED_LOSS_KEY,
    accept_entries,
    accepted_entries,
)
from ledger.client.update_metadata import LedgerMetadataStore
from ledger.core.gaps import Acceptance
from ledger.core.ledger_metadata import Fragment, LedgerMetadata
from ledger.errors import CorruptFormat, InvalidArgument
from ledger.log import Throttle
from ledger.sealed import seal
from ledger.streams import plain_log
from tests.subscriptions.log_world import LogWorld
from tests.subscriptions.test_log_store import KEY, at, keys

OPS = Acceptance(1_700_000_000_000, "ops")


async def committed(world, count=6):
    """A closed segment with one commit in each entry. Returns its ledger."""
    store = world.store()
    await store.load("g")
    for number in range(count):
        await store.advance("g", {keys(count)[number]: at(number)})
    await store.unload("g")
    return world.node("g").past_segments[0].segment_id


def forget(world, ledger, *entries):
    for bookie in world.network.bookies.values():
        for entry in entries:
            bookie.ledgers[ledger].entries.pop(entry, None)


async def accept(world, ledger, *ranges):
    process = world.process()
    await accept_entries(LedgerMetadataStore(process.metadata, world.config), ledger, ranges, OPS)


async def read_all(world, ledger):
    return await world.process().logs.read(ledger)


async def test_a_lost_entry_is_an_error_that_names_the_command_until_it_is_given_up(
    capsys, monkeypatch
):
    monkeypatch.setattr(plain_log, "_throttle", Throttle())
    world = LogWorld()
    ledger = await committed(world)
    whole = [bytes(each.data) for each in await read_all(world, ledger)]
    forget(world, ledger, 2, 3)
    with pytest.raises(CorruptFormat, match=f"gateway ledger recover {ledger} --accept-loss"):
        await read_all(world, ledger)
    await accept(world, ledger, (2, 3))
    left = [bytes(each.data) for each in await read_all(world, ledger)]
    assert left == [*whole[:2], *whole[4:]]
    said = capsys.readouterr().err
    assert "without entries that an operator gave up" in said
    assert f"ledger={ledger}" in said


async def test_entries_that_are_found_again_stay_lost():
    world = LogWorld()
    ledger = await committed(world)
    whole = [bytes(each.data) for each in await read_all(world, ledger)]
    await accept(world, ledger, (0, 0), (5, 99))
    assert [bytes(each.data) for each in await read_all(world, ledger)] == whole[1:5]


async def test_a_claim_of_a_subscriber_with_a_lost_entry_in_its_open_segment_loads_the_rest():
    world = LogWorld()
    process = world.process()
    store = process.store()
    await store.load("g")
    for number in range(4):
        await store.advance("g", {keys(4)[number]: at(number)})
    ledger = world.node("g").segment_id
    process.kill()
    await world.process().client.recover(ledger)
    forget(world, ledger, 1)
    next_store = world.store()
    with pytest.raises(CorruptFormat):
        await next_store.load("g")
    await accept(world, ledger, (1, 1))
    loaded = await next_store.load("g")
    assert sorted(loaded.offsets, key=lambda each: each.partition) == [
        key for number, key in enumerate(keys(4)) if number != 1
    ]
    await next_store.advance("g", {KEY: at(77)})
    assert (await world.store().load("g")).offsets[KEY].offset == 77


async def test_what_was_given_up_before_changes_nothing():
    world = LogWorld()
    ledger = await committed(world)
    await accept(world, ledger, (2, 3))
    metadata = await world.process().client.read_metadata(ledger)
    version = [record.version for path, record in world.tree.nodes.items() if "/ledgers" in path]
    await accept(world, ledger, (3, 3))
    assert version == [
        record.version for path, record in world.tree.nodes.items() if "/ledgers" in path
    ]
    assert accepted_entries(metadata) == ((2, 3),)
    await accept(world, ledger, (4, 6), (0, 0))
    metadata = await world.process().client.read_metadata(ledger)
    assert accepted_entries(metadata) == ((0, 0), (2, 6))
    assert metadata.custom["subscription"], "the owner is still named"


async def test_a_ledger_has_room_for_a_thousand_ranges():
    world = LogWorld()
    ledger = await committed(world)
    await accept(world, ledger, *((2 * n, 2 * n) for n in range(1000)))
    with pytest.raises(InvalidArgument, match="1000 ranges"):
        await accept(world, ledger, (5000, 5000))


def with_document(document):
    return LedgerMetadata(
        ledger=7,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=(Fragment(0, ("b0",)),),
        custom={ACCEPTED_LOSS_KEY: document},
    )


ROWS = st.lists(
    st.one_of(
        st.lists(st.one_of(st.integers(-2, 9), st.booleans(), st.text(max_size=1)), max_size=3),
        st.integers(),
        st.none(),
    ),
    max_size=4,
)


@given(ROWS)
def test_a_document_of_any_content_is_read_as_ranges_or_refused_by_the_ledger(rows):
    try:
        found = accepted_entries(with_document(seal({"entries": rows})))
    except CorruptFormat as error:
        assert "ledger 7" in str(error)
    else:
        assert json.loads(json.dumps(found)) == rows
        assert all(first <= last for first, last in found)


@pytest.mark.parametrize("document", [b"", b"1", b"\xff", seal({}), seal({"entries": 3})])
def test_an_unreadable_document_is_never_no_loss(document):
    with pytest.raises(CorruptFormat, match="ledger 7"):
        accepted_entries(with_document(document))
