"""Goal: a live tail shows new records that match, counts what it leaves out, and ends with its
browser.

Method: a gateway in this process, raw connections that read events or never read, and the tasks of
the loop before and after.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import contextmanager

import pytest

from gateway.http.views import tail as tail_view
from gateway.http.views.tail import TAILS_MAX
from tests.gateway.page_rig import opened
from tests.gateway.records_rig import check_harmless, hostile, pages, path_of, refused
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.compat]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with pages(tmp_path_factory.mktemp("tail")) as started:
        started.create("orders", 2)
        yield started


class Events:
    """The events of one open stream."""

    def __init__(self, connection):
        self._file = connection.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        while self._file.readline().strip():
            pass

    def close(self):
        self._file.close()

    def next(self):
        """Name and object of the next event."""
        name = None
        while True:
            line = self._file.readline().decode()
            assert line, "the stream ended"
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                return name, json.loads(line[6:])

    def until(self, wanted):
        """The object of the next event of this name, and all others before."""
        before = []
        while (event := self.next())[0] != wanted:
            before.append(event)
        return event[1], before


@contextmanager
def tailed(port, topic="orders", **query):
    with opened(port) as connection:
        path = path_of(topic, "tail", **query)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        events = Events(connection)
        try:
            assert events.status == 200
            assert events.next()[0] == "begun"
            yield events
        finally:
            events.close()


def tasks(page):
    """What runs on the loop of the gateway, and its connections of Kafka clients."""

    async def look():
        return len(asyncio.all_tasks()) - 1

    return page.rig.run(look())


def tails(page, port):
    async def look():
        return len(page.site(port).tails)

    return page.rig.run(look())


def settled(page, port, count):
    """Whether no more runs than before, and no tail is left."""
    return lambda: tails(page, port) == 0 and tasks(page) <= count


def test_new_records_arrive_as_rows(page):
    page.write("orders", [("old", "old", [], 0)])
    with tailed(page.plain) as events:
        page.write("orders", [("k", '{"a": 1}', [("h", None)], 1)])
        row, before = events.until("record")
    assert before == []
    assert (row["partition"], row["key"], row["value"]) == (1, "k", '{"a": 1}')
    assert (row["headers"], row["key_shown"]) == ([["h", None]], "k")


@pytest.mark.parametrize(
    "query",
    [
        {"key": "b*"},
        {"text": "wan"},
        {"header": "is=it"},
        {"where": "value == 'wanted'"},
        {"partition": "1", "text": "wan", "show": "hex"},
    ],
)
def test_only_what_matches_arrives(page, query):
    with tailed(page.plain, **query) as events:
        page.write("orders", [("a", "other", [], 0), ("b", "wanted", [("is", "it")], 1)])
        row, _ = events.until("record")
    assert row["key"] == "b"


def test_values_are_hidden_from_a_tail_too(page):
    with tailed(page.hidden) as events:
        page.write("orders", [("key", "value", [("name", "x")], 0)])
        row, _ = events.until("record")
    assert (row["key"], row["value"], row["headers"], row["value_shown"]) == (None, None, [], None)
    assert row["value_bytes"] == 5


def test_events_of_hostile_records_are_each_one_line_of_json(page):
    with tailed(page.plain, partition=0) as events:
        page.write("orders", [(hostile(n), hostile(n), [], 0) for n in range(20)])
        rows = [events.until("record")[0] for _ in range(20)]
    assert [row["key"] for row in rows] == [hostile(number) for number in range(20)]
    for row in rows:
        check_harmless("<!doctype html><html><body><p>" + row["key_shown"].replace("<", "&lt;"))


def test_more_than_a_browser_can_show_is_counted(page, monkeypatch):
    monkeypatch.setattr(tail_view, "ROWS_PER_S", 10)
    with tailed(page.plain, partition=0) as events:
        page.write("orders", [("k", str(n), [], 0) for n in range(500)])
        shown = skipped = 0
        while shown + skipped < 500:
            name, found = events.next()
            shown += name == "record"
            skipped += found["count"] if name == "skipped" else 0
    assert shown + skipped == 500
    assert 10 <= shown < 200


def test_more_bytes_than_are_worth_decoding_are_skipped_and_counted(page, monkeypatch):
    monkeypatch.setattr(tail_view, "BYTES_PER_S", 1_000)
    with tailed(page.plain, partition=0) as events:
        page.write("orders", [("k", "x" * 50_000, [], 0) for _ in range(60)])
        seen = 0
        while seen < 60:
            name, found = events.next()
            seen += 1 if name == "record" else found["count"]
        assert seen == 60
        page.write("orders", [("last", "x", [], 0)])
        while (event := events.next())[0] == "record" and event[1]["key"] != "last":
            pass
        assert event[0] in ("record", "skipped")


def test_when_the_browser_leaves_no_task_and_no_fetch_remains(page):
    wait_until(settled(page, page.plain, 10_000), "no tail")
    before = tasks(page)
    for query in ({}, {"where": "true"}):
        with tailed(page.plain, **query) as events:
            page.write("orders", [("k", "v", [], 0)])
            events.until("record")
            assert tails(page, page.plain) == 1
            assert tasks(page) > before
        wait_until(settled(page, page.plain, before), "the tasks of the tail to end")


def test_a_browser_that_never_reads_holds_little_memory_and_nobody_up(page, monkeypatch):
    monkeypatch.setattr(tail_view, "ROWS_PER_S", 1_000_000)
    monkeypatch.setattr(tail_view, "BYTES_PER_S", 2**40)
    held = []

    async def waiting():
        return sum(
            connection.transport.get_write_buffer_size()
            for connection in page.rig.applications[page.plain]._state.connections
        )

    with opened(page.plain) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        path = path_of("orders", "tail")
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        wait_until(lambda: tails(page, page.plain) == 1, "the tail to begin")
        for _ in range(10):
            page.write("orders", [("k", "x" * 3_000, [], n % 2) for n in range(1_000)])
            held.append(page.rig.run(waiting()))
        with tailed(page.plain) as events:  # another browser is served meanwhile
            page.write("orders", [("live", "x", [], 0)])
            assert events.until("record")[0]["key"] == "live"
    assert max(held) < 1024 * 1024
    wait_until(lambda: tails(page, page.plain) == 0, "no tail")


def test_a_ninth_tail_is_refused_until_one_leaves(page):
    wait_until(lambda: tails(page, page.plain) == 0, "no tail")
    open_ones = [opened(page.plain) for _ in range(TAILS_MAX)]
    request = f"GET {path_of('orders', 'tail')} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    for each in open_ones:
        each.sendall(request)
        assert Events(each).status == 200
    with opened(page.plain) as ninth:
        ninth.sendall(request)
        assert Events(ninth).status == 503
    for each in open_ones:
        each.close()
    wait_until(lambda: tails(page, page.plain) == 0, "no tail")
    with tailed(page.plain):
        assert tails(page, page.plain) == 1


@pytest.mark.parametrize("query", [{"from": "oldest"}, {"cursor": "x"}, {"kay": "x"}])
def test_a_tail_begins_at_the_end_and_nowhere_else(page, query):
    assert refused_stream(page, **query) == 400


def refused_stream(page, **query):
    with opened(page.plain) as connection:
        path = path_of("orders", "tail", **query)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return Events(connection).status


def test_a_topic_that_does_not_exist_is_an_event_of_its_own(page):
    with opened(page.plain) as connection:
        path = path_of("none", "tail")
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        name, found = Events(connection).next()
    assert name == "error"
    assert found["error"]["code"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert refused(page.plain, path_of("none", "messages"))[0] == 404
