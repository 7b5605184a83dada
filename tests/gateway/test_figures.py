"""Goal: each figure has one formula, and rows of figures are sent, found and paged without loss.

Method: the formulas and tables beside slow twins, by Hypothesis.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.group_lag import lag_row
from gateway.admin.top_figures import lag_of
from gateway.core.figures import by_size, first_unread, growth, lag_in_records, rate, total
from gateway.figures import tables
from gateway.figures.held import TOPICS, HeldShare
from gateway.figures.merged import TOPIC_ORDERS, TopicFigures
from gateway.figures.rows import (
    GroupRow,
    PartitionFigures,
    TopicPart,
    group_bytes,
    group_from,
    part_bytes,
    part_from,
)
from gateway.figures.slices import Refreshed, Slices, sorted_in_slices
from gateway.figures.tables import BadCursor, Table
from gateway.figures.versions import VersionedRows
from gateway.http.hrefs import group_href
from gateway.http.views.listing import search_of

# --- formulas ------------------------------------------------------------------------------------

OFFSETS = st.integers(0, 2**62)


@given(OFFSETS, OFFSETS, OFFSETS)
def test_records_below_the_start_of_the_log_are_no_lag(committed, start, length):
    end = start + length
    lag = lag_in_records(committed, start, end)
    assert lag == len(range(max(committed, start), max(end, committed, start)))
    assert 0 <= lag <= length


@given(OFFSETS, st.none() | OFFSETS, st.none() | OFFSETS)
def test_commands_use_the_one_formula_of_the_lag(committed, start, end):
    lag = lag_in_records(committed, start, end)
    row = lag_row("g", ("t", 0), committed, start, end)
    assert (row["lag"], row["from"]) == (lag, first_unread(committed, start))
    place = ("t", 0)
    starts, ends = {} if start is None else {place: start}, {} if end is None else {place: end}
    assert lag_of({place: committed}, starts, ends) == lag


def test_what_is_unknown_is_never_a_zero():
    assert lag_in_records(5, 0, None) is None
    assert growth(None, 5) is growth(5, None) is growth(5, 4) is None
    assert rate(None, 1.0) is rate(5, 0.0) is None
    assert total([1, None, 3]) is None
    assert total([]) == 0
    assert sorted([None, 0, 7], key=lambda value: by_size(value, "")) == [7, 0, None]


# --- rows on their way ---------------------------------------------------------------------------

NAMES = st.text(max_size=12) | st.sampled_from(
    ["\x00\x1b[2J", "漢字" * 60, "\U0001f600" * 60, 'é\\"']
)
COUNTS = st.integers(0, 2**63)
RATES = st.none() | st.floats(0, 1e12).map(lambda value: round(value, 3))
PARTITIONS = st.builds(
    PartitionFigures,
    st.integers(0, 10_000),
    COUNTS,
    COUNTS,
    st.none() | COUNTS,
    st.integers(0, 10**6),
    RATES,
    RATES,
    st.integers(0, 16),
    COUNTS,
)


@given(NAMES, st.lists(PARTITIONS, max_size=5))
def test_a_part_of_a_topic_arrives_as_it_was_sent_and_is_no_larger_than_it_counts(name, rows):
    part = TopicPart(name, 100, tuple(rows))
    sent = json.dumps(part)
    assert part_from(json.loads(sent)) == part
    assert len(sent) <= part_bytes(part)


@given(
    NAMES,
    st.none()
    | st.dictionaries(
        NAMES, st.lists(st.tuples(st.integers(0, 10**4), COUNTS), min_size=1).map(tuple), max_size=3
    ),
    st.lists(st.just("0123456789ab"), max_size=3).map(tuple),
)
def test_a_group_arrives_as_it_was_sent_and_is_no_larger_than_it_counts(name, positions, clients):
    row = GroupRow(name, "Stable", "classic", "consumer", 3, True, positions, 1.5, clients, 12)
    sent = json.dumps(row)
    assert group_from(json.loads(sent)) == row
    assert len(sent) <= group_bytes(row)


CHANGES = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(0, 3)) | st.just("read"),
    max_size=60,
)


@given(CHANGES, st.integers(1, 40))
def test_a_reader_of_changes_has_the_same_rows_in_the_end(changes, bytes_max):
    table, held, version = VersionedRows(), {}, 0
    expected = {}

    def read(version):
        while True:
            found = table.changes(version, lambda row: 10, bytes_max)
            if found.whole:
                held.clear()
            held.update(found.rows)
            for key in found.gone:
                held.pop(key, None)
            version = found.version
            if not found.more:
                return version

    for change in [*changes, "read"]:
        if change == "read":
            version = read(version)
            assert held == expected
            continue
        key, value = change
        if value is None:
            table.drop(key)
            expected.pop(key, None)
        else:
            table.put(key, (key, value))
            expected[key] = value
    assert table.changes(version, lambda row: 1, 100).rows == []


def test_a_row_that_is_put_again_unchanged_is_not_sent_again():
    table = VersionedRows()
    table.put("a", (1,))
    version = table.changes(0, lambda row: 1, 100).version
    table.put("a", (1,))
    assert table.changes(version, lambda row: 1, 100).rows == []


def test_a_reader_that_missed_deletions_starts_over(monkeypatch):
    monkeypatch.setattr("gateway.figures.versions.GONE_MAX", 3)
    table = VersionedRows()
    table.put("kept", 1)
    for number in range(10):
        table.put(number, number)
    version = table.changes(0, lambda row: 1, 1_000).version
    for number in range(10):
        table.drop(number)
    found = table.changes(version, lambda row: 1, 1_000)
    assert found.whole
    assert found.rows == [1]
    assert len(table._changed) <= 5


# --- pages ---------------------------------------------------------------------------------------


def row_of(name, rate_now):
    return TopicFigures(name, False, 1, 1, 1, 1, rate_now, 0.0, 0, 0, 1, False)


async def table_of(rates):
    table = Table(TOPIC_ORDERS)
    table.rows.update({name: row_of(name, value) for name, value in rates.items()})
    return table


RATED = st.dictionaries(st.text("ab", min_size=1, max_size=4), st.none() | st.integers(0, 3))


@given(RATED, st.integers(1, 4), st.sampled_from(["name", "rate"]))
def test_pages_in_a_row_show_every_row_once_in_order(rates, limit, order):
    async def read():
        table = await table_of(rates)
        cursor, found = None, []
        while True:
            page = await table.page(order, cursor, limit)
            assert page.total == len(rates)
            assert len(page.rows) <= limit
            found += page.rows
            cursor = page.next
            if cursor is None:
                return [each.name for each in found]

    key = TOPIC_ORDERS[order]
    expected = sorted((row_of(*each) for each in rates.items()), key=key)
    assert asyncio.run(read()) == [each.name for each in expected]


async def test_a_search_counts_all_and_goes_on_behind_its_cursor():
    table = await table_of({f"orders-{n:03d}": n for n in range(300)} | {"other": 1})
    search = search_of("ORDERS-1")
    first = await table.page("rate", None, 60, search)
    second = await table.page("rate", first.next, 60, search)
    assert (first.total, second.total, second.next) == (100, 100, None)
    names = [each.name for each in (*first.rows, *second.rows)]
    assert names == [f"orders-{n}" for n in range(199, 99, -1)]
    globbed = await table.page("name", None, 5, search_of("*-00[1-3]"))
    assert [each.name for each in globbed.rows] == ["orders-001", "orders-002", "orders-003"]


async def test_a_search_sees_the_begin_of_a_name_that_is_very_long():
    table = await table_of({f"{'a' * 2_000}b": 1})
    totals = [
        (await table.page("name", None, 5, search_of(each))).total
        for each in ("aA", "b", "a*", "*b")
    ]
    assert totals == [1, 0, 1, 0]


NAMES = st.dictionaries(
    st.text("aAbB-", min_size=1, max_size=4), st.none() | st.integers(0, 3), max_size=40
)


@given(NAMES, st.text("aB-", min_size=1, max_size=2), st.integers(1, 4), st.integers(0, 45))
def test_a_search_finds_what_its_slow_twin_finds(rates, text, limit, at):
    async def read():
        table = await table_of(rates)
        places = [(TOPIC_ORDERS["rate"](row), row.name) for row in table.rows.values()]
        behind = sorted(places)[at - 1][0] if 0 < at <= len(places) else None
        cursor = None if behind is None else tables._encoded(behind)
        matching = [name for _, name in sorted(places) if text.lower() in name.lower()]
        rest = [
            name
            for key, name in sorted(places)
            if name in matching and (behind is None or key > behind)
        ]
        found = await table.page("rate", cursor, limit, search_of(text))
        assert [each.name for each in found.rows] == rest[:limit]
        assert found.total == len(matching)
        assert (found.next is None) == (len(rest) <= limit)

    asyncio.run(read())


async def test_a_search_finds_names_of_the_index_that_was_built_last():
    table = await table_of({"Old": 1})
    assert (await table.page("name", None, 5, search_of("ol"))).total == 1
    table.rows["OLDER"] = row_of("OLDER", 1)
    await table.index_again(Slices())
    found = await table.page("name", None, 5, search_of("ol"))
    assert [each.name for each in found.rows] == ["OLDER", "Old"]


@pytest.mark.parametrize(
    "cursor", ["x", "é", "W10", "WzEsIDJd", "e30", "W3RydWUsICJhIl0", "[[" * 50, "-" * 900]
)
async def test_a_cursor_that_is_not_of_this_table_is_refused(cursor):
    table = await table_of({"a": 1})
    with pytest.raises(BadCursor):
        await table.page("name", cursor, 5)


async def test_a_page_uses_the_index_that_is_complete_and_rows_that_were_deleted_are_not_in_it():
    table = await table_of({"a": 1, "b": 2})
    await table.page("rate", None, 5)
    table.rows["c"] = row_of("c", 9)
    del table.rows["a"]
    before = await table.page("rate", None, 5)
    assert [each.name for each in before.rows] == ["b"]
    await table.index_again(Slices())
    after = await table.page("rate", None, 5)
    assert [each.name for each in after.rows] == ["c", "b"]


MOVES = st.lists(
    st.dictionaries(
        st.sampled_from("abcdefgh"), st.none() | st.just("gone") | st.integers(0, 3), max_size=4
    ),
    max_size=8,
)


@given(MOVES, st.sampled_from([0, 1, 100]))
def test_an_index_that_is_brought_up_to_date_is_the_one_that_is_sorted_anew(moves, moved_max):
    async def read():
        table = await table_of({"a": 1, "b": None})
        for order in ("name", "rate"):
            await table.page(order, None, 5)
        for changes in moves:
            for name, value in changes.items():
                table.rows.pop(name, None)
                if value != "gone":
                    table.rows[name] = row_of(name, value)
            await table.index_again(Slices(), set(changes))
            for order in ("name", "rate"):
                page = await table.page(order, None, 100)
                assert page.rows == sorted(table.rows.values(), key=TOPIC_ORDERS[order])
                assert page.total == len(table.rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_MOVED_MAX", moved_max)
        asyncio.run(read())


async def test_an_index_is_the_same_object_until_a_key_changes():
    table = await table_of({"a": 1, "b": 2})
    await table.page("name", None, 5)
    before = table._indexes["name"].entries
    table.rows["a"] = row_of("a", 9)
    await table.index_again(Slices(), ["a"])
    assert table._indexes["name"].entries is before


class Ending(Slices):
    """Slices that end a piece of work at one of its steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    async def pause(self):
        self.steps -= 1
        if self.steps == 0:
            raise InterruptedError


@pytest.mark.parametrize("moved_max", [0, 100])
@pytest.mark.parametrize("steps", range(1, 8))
async def test_an_index_whose_renewal_failed_is_right_after_the_next_one(
    monkeypatch, moved_max, steps
):
    monkeypatch.setattr(tables, "_MOVED_MAX", moved_max)
    table = await table_of(dict(zip("abcd", range(4), strict=True)))
    await table.page("rate", None, 5)
    table.rows |= {"a": row_of("a", 9), "b": row_of("b", 8), "e": row_of("e", 7)}
    del table.rows["c"]
    with suppress(InterruptedError):
        await table.index_again(Ending(steps), ["a", "b", "c", "e"])
    table.rows["d"] = row_of("d", 10)
    await table.index_again(Slices(), ["d"])
    found = await table.page("rate", None, 9)
    assert [each.name for each in found.rows] == ["d", "a", "b", "e"]
    assert found.total == 4


async def test_what_changes_while_an_index_is_built_is_in_it_afterwards(monkeypatch):
    table = await table_of(dict.fromkeys("abcd", 1))
    monkeypatch.setattr("gateway.figures.slices.SORTED_AT_ONCE", 1)
    building = asyncio.ensure_future(table.page("rate", None, 5))
    await asyncio.sleep(0)
    table.rows["a"] = row_of("a", 9)
    await table.index_again(Slices(), ["a"])
    await building
    await table.index_again(Slices(), [])
    found = await table.page("rate", None, 5)
    assert [each.name for each in found.rows] == ["a", "b", "c", "d"]


async def test_an_order_that_no_page_asks_for_is_not_kept_up_to_date():
    table = await table_of({"a": 1})
    await table.page("name", None, 5)
    await table.page("rate", None, 5)
    await asyncio.sleep(tables.UNUSED_S / 2)
    await table.page("rate", None, 5)
    await asyncio.sleep(tables.UNUSED_S / 2 + 1)
    await table.index_again(Slices(), [])
    assert list(table._indexes) == ["rate"]
    assert [each.name for each in (await table.page("name", None, 5)).rows] == ["a"]


PARTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0, 100]), st.none() | st.integers(1, 3)),
    max_size=20,
)


@given(PARTS)
def test_the_partitions_of_a_gateway_are_counted_as_they_come_and_go(changes):
    held = HeldShare(1)
    for topic, first, count in changes:
        if count is None:
            list(held.take_parts([], [(topic, first)]))
        else:
            rows = tuple(PartitionFigures(first + at, 0, 0, 0, 1, 0.0, 0.0) for at in range(count))
            list(held.take_parts([TopicPart(topic, first, rows)], []))
        parts = [part for parts in held.topics.values() for part in parts.values()]
        assert held.partition_count == sum(len(part.partitions) for part in parts)
    held.forget(TOPICS)
    assert held.partition_count == 0


@given(st.lists(st.integers(), max_size=2_000, unique=True))
def test_sorting_in_slices_sorts(numbers):
    async def work():
        return await sorted_in_slices(numbers, lambda each: each, Slices(hurried=True))

    found = asyncio.run(work())
    assert [each for _, each in found] == sorted(numbers)


async def test_a_value_is_computed_once_for_all_and_again_only_while_it_is_asked_for():
    computed = []

    async def compute():
        computed.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)
        return len(computed)

    value = Refreshed("a number", compute)
    assert await asyncio.gather(*(value.get() for _ in range(5))) == [1] * 5
    await asyncio.sleep(60)
    asked = len(computed)
    assert 8 <= asked <= 12
    await asyncio.sleep(600)
    assert len(computed) == asked
    assert await value.get() == asked + 1  # one that is old is not returned
    await value.close()


async def test_an_error_reaches_the_caller_and_the_next_call_tries_again():
    answers = [ValueError("no"), 7]

    async def compute():
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    value = Refreshed("a number", compute)
    with pytest.raises(ValueError, match="no"):
        await value.get()
    assert await value.get() == 7
    await value.close()


# --- names in paths ------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_name_is_one_part_of_a_path(name):
    head, _, part = group_href(name).rpartition("/")
    assert head == "/groups"
    assert part.isascii()
    assert not set(part).intersection(" ?#<>\"'\\\x00\n")
    assert unquote(part) == name
