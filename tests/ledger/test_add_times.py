"""Goal: for the newest entries, it is known which bookies acknowledged them and after how long.

Method: a ledger writer on virtual time, over bookies that answer when the test says so.
"""

from __future__ import annotations

import asyncio

import pytest

from ledger import add_times
from ledger.adapters.system.clock import SystemClock
from ledger.add_times import ENTRIES_MAX, SAME_S, AddTimes
from ledger.client import writer as writer_module
from ledger.client.client import LedgerClient
from ledger.client.config import LedgerClientConfig
from ledger.client.writer import TIMED_EACH_S, TIMED_FIRST
from ledger.ports.bookies import BookieInfo, Status
from tests.sim.metadata import SimMetadata


@pytest.fixture
def ring(monkeypatch):
    """The ring of this test: other tests use the same ids of ledgers."""
    found = AddTimes()
    monkeypatch.setattr(add_times, "add_times", found)
    monkeypatch.setattr(writer_module, "measured_s", lambda: asyncio.get_running_loop().time())
    return found


class WaitingBookies:
    """Three bookies that answer adds only when they are told to."""

    def __init__(self):
        self.waiting = []

    def available(self):
        return ("b0", "b1", "b2")

    def registered(self):
        return dict.fromkeys(self.available(), BookieInfo())

    def add(self, bookie, ledger, entry, master_key, body, on_added, *, recovery=False):
        self.waiting.append((bookie, entry, on_added))

    def answer(self, bookie, entry, status=Status.OK):
        for each in self.waiting:
            if each[:2] == (bookie, entry):
                each[2](status)


async def written(bookies, entries=1):
    client = LedgerClient(SimMetadata(), bookies, SystemClock(), LedgerClientConfig())
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for _ in range(entries):
        writer.add([b"x"], lambda error: None)
    return writer.ledger


async def test_each_acknowledgement_has_its_bookie_and_its_milliseconds_in_their_order(ring):
    bookies = WaitingBookies()
    ledger = await written(bookies, TIMED_FIRST + 1)
    assert ring.find(ledger, 0) == []
    await asyncio.sleep(0.002)
    bookies.answer("b2", 0)
    await asyncio.sleep(0.003)
    bookies.answer("b0", 0)
    bookies.answer("b0", TIMED_FIRST)
    await asyncio.sleep(1)  # after the entry is confirmed
    bookies.answer("b1", 0)
    assert [tuple(each) for each in ring.find(ledger, 0)] == [
        ("b2", 2.0),
        ("b0", 5.0),
        ("b1", 1005.0),
    ]
    assert ring.find(ledger, TIMED_FIRST) is None  # it was sent at the same moment


async def test_a_refusal_is_no_acknowledgement(ring):
    bookies = WaitingBookies()
    ledger = await written(bookies)
    bookies.answer("b1", 0, Status.IO_ERROR)
    bookies.answer("b2", 0)
    assert [each.bookie for each in ring.find(ledger, 0)] == ["b2"]


async def test_of_many_entries_at_once_the_first_and_each_64th_are_remembered(ring):
    """A document or a user who explains one of a few records finds when they were acknowledged."""
    bookies = WaitingBookies()
    ledger = await written(bookies, 200)
    remembered = [entry for entry in range(200) if ring.find(ledger, entry) is not None]
    assert remembered == [*range(8), 64, 128, 192]


async def test_a_writer_that_is_busy_remembers_an_entry_each_two_ms(ring):
    bookies = WaitingBookies()
    client = LedgerClient(SimMetadata(), bookies, SystemClock(), LedgerClientConfig())
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for _ in range(TIMED_FIRST + 50):
        writer.add([b"x"], lambda error: None)
        await asyncio.sleep(TIMED_EACH_S / 4)
    later = range(TIMED_FIRST, TIMED_FIRST + 50)
    remembered = [entry for entry in later if ring.find(writer.ledger, entry) is not None]
    assert 10 <= len(remembered) <= 13


async def test_entries_that_are_written_rarely_are_all_remembered(ring):
    class Answering(WaitingBookies):
        def add(self, bookie, ledger, entry, master_key, body, on_added, *, recovery=False):
            self.waiting.append(on_added)

    bookies = Answering()
    client = LedgerClient(SimMetadata(), bookies, SystemClock(), LedgerClientConfig())
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for _ in range(200):
        writer.add([b"x"], lambda error: None)
        waiting, bookies.waiting = bookies.waiting, []
        for on_added in waiting:
            on_added(Status.OK)
        await asyncio.sleep(2 * TIMED_EACH_S)
    for entry in range(200):
        assert len(ring.find(writer.ledger, entry)) == 3


def test_a_ring_holds_no_more_than_its_size():
    ring = AddTimes()
    for entry in range(ENTRIES_MAX + 1):
        ring.add([7, entry, 1.0, 1, "b", 1.5])
    assert ring.find(7, 0) is None
    assert [tuple(each) for each in ring.find(7, 1)] == [("b", 500.0)]
    assert ring.find(8, 1) is None


def test_what_was_confirmed_then_was_first_acknowledged_with_an_entry_of_its_group():
    ring = AddTimes()
    ring.add([7, 1, 10.0, 2, "b1", 10.1, "b2", 10.2])
    ring.add([7, 2, 10.05, 2, "b1", 10.3, "b2", 10.4])
    ring.add([8, 1, 10.06, 1, "b3", 10.39])
    sent_s = (9.9, 10.06)
    assert ring.first_s({7}, sent_s, 10.4 + SAME_S / 2) == 10.3
    assert ring.first_s({7}, sent_s, 10.2) == 10.1
    assert ring.first_s({7}, (10.01, 10.06), 10.2) is None  # it was sent before
    assert ring.first_s({7}, (9.9, 10.0), 10.4) is None  # it was sent later
    assert ring.first_s({7}, (9.9, 9.95), 10.2) == 10.1  # the first one: the stream was opened
    assert ring.first_s({7}, (9.9, 9.95), 10.4) is None  # a later one
    assert ring.first_s({7}, sent_s, 10.4 + 2 * SAME_S) is None  # no group ended then
    assert ring.first_s({9}, sent_s, 10.4) is None
    assert ring.first_s({8}, sent_s, 10.39) == 10.39


async def test_a_slow_second_bookie_is_not_taken_for_a_slow_first_one(ring):
    """The second bookie answers for all entries at once, the first one for each after 1 ms."""
    bookies = WaitingBookies()
    client = LedgerClient(SimMetadata(), bookies, SystemClock(), LedgerClientConfig())
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    begun_s = asyncio.get_running_loop().time()
    for entry in range(30):
        writer.add([b"x"], lambda error: None)
        await asyncio.sleep(0.001)
        bookies.answer("b0", entry)
        await asyncio.sleep(2 * TIMED_EACH_S)
    # The first entry waits, although entries of the same time have one answer just now.
    ended_s = asyncio.get_running_loop().time()
    assert ring.first_s({writer.ledger}, (begun_s, begun_s), ended_s) is None
    for entry in range(30):
        bookies.answer("b1", entry)
    found = ring.first_s({writer.ledger}, (begun_s, begun_s), ended_s)
    assert found is not None
    assert round(found - begun_s, 6) == 0.001


def test_the_first_entry_after_a_request_is_not_known_once_the_ring_has_dropped_some():
    ring = AddTimes(2)
    for entry, sent_s in enumerate((10.0, 10.05, 10.06)):
        ring.add([7, entry, sent_s, 1, "b1", 10.1])
    assert ring.first_s({7}, (9.9, 9.95), 10.1) is None
    assert ring.first_s({7}, (10.05, 10.051), 10.1) == 10.1
