"""Goal: the page of messages finds every record that matches, shows none as markup, and hides what
it is to hide.

Method: a gateway in this process with records of librdkafka; pages and their JSON over HTTP. Bounds
are lowered, so that a search has many pages, and the union of these is compared with what was
written.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import threading
import time

import pytest

from gateway.admin.consume_bounds import read_bound
from gateway.admin.record_json import BadRecord, decode_record
from gateway.http.record_cursor import Cursor, decode_cursor, encode_cursor
from gateway.http.record_search import Bounds, Span
from gateway.http.views import messages as messages_view
from tests.gateway.admin_commands import invoke
from tests.gateway.authorizers import Deciding
from tests.gateway.page_rig import ask
from tests.gateway.records_rig import (
    FIRST_MS,
    UNHURRIED,
    check_harmless,
    found,
    hostile,
    pages,
    path_of,
    refused,
)

pytestmark = [pytest.mark.process, pytest.mark.compat]
BINARY = bytes(range(256))
NESTED = json.dumps([[n % 10] for n in range(1000)], separators=(",", ":"))
DEEP = json.dumps([[n % 10] for n in range(50_000)], separators=(",", ":"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with pages(tmp_path_factory.mktemp("messages")) as started:
        started.create("orders", 3)
        rows = [
            (
                f"k{number}" if number % 3 else None,
                json.dumps({"order": {"id": number}, "odd": bool(number % 2)}),
                [("trace", str(number)), ("trace", "twice"), ("none", None)],
                number % 3,
            )
            for number in range(300)
        ]
        started.write("orders", rows, **{"compression.type": "lz4", "batch.num.messages": 20})
        started.create("hostile")
        started.write(
            "hostile", [(hostile(n), hostile(n), [(hostile(n), hostile(n))], 0) for n in range(200)]
        )
        started.create("odd")
        large = b"\xf0\x9f\x98\x80" * 5000
        started.write(
            "odd",
            [
                (None, None, [], 0),
                (b"", b"", [("", b"")], 0),
                (BINARY, BINARY, [("h", BINARY)], 0),
                ("large", large, [("big", "x" * 9000), ("then", "y")], 0),
                ("json", '{"b":[1.10,{"a":"x"},[]],"n":12345678901234567890}', [], 0),
            ],
        )
        started.create("empty")
        started.create("nested")
        started.write("nested", [(None, NESTED, [], 0)] * 100 + [(None, DEEP, [], 0)])
        yield started


def every_page(port, topic, **query):
    """The rows of all pages of a search, and what each page says."""
    rows, said, cursor = [], [], None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        answer = found(port, path_of(topic, "messages", **query, **more))
        rows += answer["rows"]
        said.append(answer)
        cursor = answer["next"]
        if cursor is None:
            return rows, said
        assert len(said) < 400


def ids(rows):
    return [json.loads(row["value"])["order"]["id"] for row in rows]


# what is found


def test_the_newest_records_of_all_partitions_come_first(page):
    answer = found(page.plain, path_of("orders", "messages"))
    assert ids(answer["rows"]) == list(range(299, 249, -1))
    assert answer["sentence"] == "searched 50 of 300: go on"
    assert (answer["total"], answer["searched"], answer["ended_by"]) == (300, 50, None)


def test_a_row_is_what_topic_consume_prints_and_more(page):
    (row,) = found(page.plain, path_of("orders", "messages", limit=1))["rows"]
    code, out, _ = invoke(
        "topic", "consume", "orders", "-p", "2", "--from", "-1", "-o", "jsonl",
        bootstrap=page.bootstrap,
    )  # fmt: skip
    assert code == 0
    printed = json.loads(out)
    assert {key: row[key] for key in printed} == printed
    assert row["offset_href"] == "/topics/orders/2/99"
    assert (row["key_bytes"], row["headers_count"]) == (4, 3)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, range(299, -1, -1)),
        ({"from": "oldest"}, range(300)),
        ({"from": "offset", "offset": "98"}, range(294, 300)),
        ({"from": "offset", "offset": "100"}, []),
        ({"from": "time", "time": str(FIRST_MS + 290_000)}, range(290, 300)),
        ({"from": "time", "time": "2020-09-13T12:31:30Z"}, range(290, 300)),
        ({"partition": "1"}, range(298, 0, -3)),
        ({"from": "oldest", "partition": "0,2"}, [n for n in range(300) if n % 3 != 1]),
        ({"key": "k29?"}, [299, 298, 296, 295, 293, 292, 290]),
        ({"text": '"id": 7}'}, [7]),
        ({"text": ".*"}, []),
        ({"header": "trace=12"}, [12]),
        ({"header": "none", "key": "k1"}, [1]),
        ({"where": "value.order.id < 4"}, [3, 2, 1, 0]),
        ({"from": "oldest", "where": "value.odd && offset == 1"}, [3, 5]),
        ({"isolation": "read_uncommitted", "limit": "500"}, range(299, -1, -1)),
    ],
)
def test_the_pages_of_a_search_have_each_match_once_and_in_order(page, query, wanted):
    rows, said = every_page(page.plain, "orders", **{"limit": "150", **query})
    assert ids(rows) == list(wanted)
    assert all(each["sentence"].endswith(": go on") for each in said[:-1])
    assert said[-1]["sentence"].startswith("searched all ")


@pytest.mark.parametrize("begin", ["newest", "oldest"])
@pytest.mark.parametrize(
    "bounds", [UNHURRIED._replace(records=80), UNHURRIED._replace(bytes=8_000)]
)
def test_a_search_that_reaches_a_bound_says_so_and_goes_on(page, monkeypatch, begin, bounds):
    monkeypatch.setattr(messages_view, "BOUNDS", bounds)
    query = {"from": begin, "text": '"odd": true', "limit": "500"}
    rows, said = every_page(page.plain, "orders", **query)
    odd = [number for number in range(300) if number % 2]
    assert sorted(ids(rows)) == odd
    assert len(said) > 2
    for each in said[:-1]:
        assert each["ended_by"] == ("records" if bounds.records < 100 else "bytes")
        assert each["sentence"] == f"searched {each['searched']} of 300: go on"
        assert each["read_records"] <= max(bounds.records, 1)
    assert [each["searched"] for each in said] == sorted({each["searched"] for each in said})


def test_a_search_ends_in_time_and_goes_on(page, monkeypatch):
    monkeypatch.setattr(messages_view, "BOUNDS", Bounds(seconds=0.0))
    answer = found(page.plain, path_of("orders", "messages"))
    assert (answer["rows"], answer["ended_by"]) == ([], "time")
    assert answer["sentence"] == "searched 0 of 300: go on"
    monkeypatch.undo()
    rest = found(page.plain, path_of("orders", "messages", cursor=answer["next"]))
    assert ids(rest["rows"]) == list(range(299, 249, -1))


def test_records_for_which_an_expression_fails_are_counted(page):
    answer = found(page.plain, path_of("odd", "messages", where="value.b[0] > 1.0"))
    assert [row["key"] for row in answer["rows"]] == ["json"]
    (note,) = answer["notes"]
    assert note.startswith("where failed for ")


def test_offsets_that_a_partition_does_not_have_are_noted(page):
    answer = found(page.plain, path_of("orders", "messages", **{"from": "offset", "offset": "100"}))
    assert answer["notes"] == [f"partition {index} ends at offset 100" for index in range(3)]


def test_a_topic_without_records_is_searched_to_its_end(page):
    answer = found(page.plain, path_of("empty", "messages"))
    assert (answer["rows"], answer["next"], answer["sentence"]) == ([], None, "searched all 0")


def test_the_command_of_the_page_finds_the_same(page):
    query = {"from": "oldest", "text": '"id": 7}', "key": "k*"}
    html = ask(page.plain, path_of("orders", "messages", **query)).text
    command = messages_view.messages_command(
        type("Asked", (), {"query": query, "path": {"topic": "orders"}})
    )
    assert command.split()[0] in html
    code, out, _ = invoke(*shlex.split(command)[1:], bootstrap=page.bootstrap)
    assert code == 0
    assert [json.loads(line)["offset"] for line in out.splitlines()] == [2]


# values


def test_values_are_cut_at_whole_characters_and_say_so(page):
    rows = {row["key"]: row for row in found(page.plain, path_of("odd", "messages"))["rows"]}
    large = rows["large"]
    assert large["value"] == "\U0001f600" * 1024
    assert (large["value_bytes"], large["value_cut"], large["value_encoding"]) == (
        20_000,
        True,
        "text",
    )
    assert large["headers_cut"] and large["headers"][0][1] == "x" * (4096 - 3)
    assert not rows["json"]["value_cut"]


@pytest.mark.parametrize(
    ("show", "shown"),
    [
        ("text", '{"b":[1.10,{"a":"x"},[]],"n":12345678901234567890}'),
        (
            "json",
            '{\n  "b": [\n    1.10,\n    {\n      "a": "x"\n    },\n    []\n  ],\n'
            '  "n": 12345678901234567890\n}',
        ),
    ],
)
def test_json_is_shown_as_it_is_or_on_lines(page, show, shown):
    query = {"key": "json", "show": show}
    (row,) = found(page.plain, path_of("odd", "messages", **query))["rows"]
    assert row["value_shown"] == shown


def test_bytes_that_are_no_text_are_shown_as_hex(page):
    rows = found(page.plain, path_of("odd", "messages", show="json", **{"from": "oldest"}))["rows"]
    null, empty, binary = rows[:3]
    assert (null["key_shown"], null["value_shown"], null["value_bytes"]) == (None, None, None)
    assert (empty["key_shown"], empty["value"], empty["value_bytes"]) == ("", "", 0)
    assert binary["value_shown"].startswith("000000  00 01 02 03 04")
    assert binary["value_shown"].count("\n") == 15


def test_two_hundred_hostile_records_add_no_element_and_no_attribute(page):
    for show in ("text", "json", "hex"):
        answer = ask(page.writing, path_of("hostile", "messages", limit=500, show=show))
        assert answer.status == 200
        seen = check_harmless(answer.text)
        assert seen.tags["tr"] == 202 + 1  # a head, the rows, and both of the live table
    text = "".join(
        check_harmless(ask(page.plain, path_of("hostile", "messages", limit=500)).text).texts
    )
    assert "<script>alert(1)</script> 0" in text
    assert "\x1b" not in text and "\u202e" not in text


def test_hostile_filters_are_shown_as_text(page):
    for number in range(0, 20, 3):
        word = hostile(number)
        query = {"key": word, "text": word, "header": f"x={word}"}
        answer = ask(page.writing, path_of("orders", "messages", **query))
        assert answer.status == 200
        check_harmless(answer.text)


@pytest.mark.parametrize(
    ("time_", "option"),
    [("2h", "@-2h"), ("1777600000000", "@1777600000000"), ("9", "@0000000000009")],
)
def test_the_command_of_a_time_is_one_that_the_command_line_takes(page, time_, option):
    query = {"from": "time", "time": time_, "limit": 1}
    shown = ask(page.plain, path_of("orders", "messages", **query)).text
    assert f"--from {option} -o jsonl</code>" in shown
    read_bound(option, FIRST_MS)


def test_a_parameter_that_is_there_twice_is_refused(page):
    path = "/topics/orders/messages?key=k1&key=k2"
    assert refused(page.plain, path) == (400, "INVALID_REQUEST", "a parameter is there twice")


# --http-hide-values


def test_hidden_values_are_nowhere(page):
    secrets = ('"id"', "trace", "twice", "k299")
    for path in (path_of("orders", "messages"), "/api/v1" + path_of("orders", "messages")):
        text = ask(page.hidden, path).text
        assert [
            each for each in secrets if each in text or each.replace('"', "&#34;") in text
        ] == []
    row = found(page.hidden, path_of("orders", "messages"))["rows"][0]
    assert (row["key"], row["value"], row["headers"], row["hidden"]) == (None, None, [], True)
    assert (row["value_bytes"], row["headers_count"]) == (35, 3)
    lines = ask(page.hidden, path_of("orders", "messages.jsonl", limit=3)).text.splitlines()
    assert [json.loads(line)["value"] for line in lines] == [None] * 3
    with pytest.raises(BadRecord, match="hidden"):  # it would be written as a tombstone
        decode_record(lines[0])


@pytest.mark.parametrize("name", ["key", "text", "header", "where"])
def test_hidden_values_cannot_be_searched_for(page, name):
    status, code, _ = refused(page.hidden, path_of("orders", "messages", **{name: "true"}))
    assert (status, code) == (403, "VALUES_HIDDEN")
    for path in ("messages.jsonl", "tail"):
        assert ask(page.hidden, path_of("orders", path, **{name: "true"})).status == 403


# the file


def test_the_file_has_the_lines_of_topic_consume(page):
    query = {"from": "oldest", "partition": "1"}
    answer = ask(page.plain, path_of("orders", "messages.jsonl", **query))
    assert answer.headers["content-type"] == "application/x-ndjson"
    code, out, _ = invoke(
        "topic", "consume", "orders", "-p", "1", "-o", "jsonl", bootstrap=page.bootstrap
    )
    assert code == 0
    assert answer.text == out


def test_a_file_that_is_not_complete_says_so_in_its_last_line(page, monkeypatch):
    monkeypatch.setattr(messages_view, "BOUNDS", UNHURRIED._replace(records=100))
    lines = ask(page.plain, path_of("orders", "messages.jsonl")).text.splitlines()
    assert len(lines) < 300
    last = json.loads(lines[-1])
    assert last["unfinished"] == "searched 100 of 300: go on"
    rest = ask(page.plain, path_of("orders", "messages.jsonl", cursor=last["next"])).text
    assert json.loads(rest.splitlines()[-1])["unfinished"] == "searched 200 of 300: go on"


def test_a_file_of_a_number_of_records_has_these(page):
    lines = ask(page.plain, path_of("orders", "messages.jsonl", limit=3)).text.splitlines()
    assert ids(json.loads(line) for line in lines) == [299, 298, 297]


# bad input


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"kay": "x"}, "no parameter 'kay'"),
        ({"from": "middle"}, "from must be one of newest"),
        ({"from": "offset"}, "from=offset needs offset"),
        ({"from": "offset", "offset": "-1"}, "offset: must be a whole number"),
        ({"from": "time", "time": "now"}, "time: 'now' is not a time"),
        ({"from": "time", "time": "9" * 30}, "time: "),
        ({"partition": "1-"}, "partition: must be partitions"),
        ({"header": "=x"}, "header: must be name=value"),
        ({"where": "value.("}, "where: column 7"),
        ({"where": "valu == 1"}, "where: column 1: no variable valu"),
        ({"where": "offset"}, "where: "),
        ({"show": "xml"}, "show must be one of"),
        ({"key": "x" * 1001}, "key has more than 1000"),
        ({"cursor": "AAAA"}, "cursor is not one"),
        ({"cursor": "\u20ac"}, "cursor is not one"),
        ({"limit": "501"}, "limit must be 1 to 500"),
        ({"limit": "0"}, "limit must be 1 to 500"),
    ],
)
def test_a_bad_parameter_is_400_with_its_name(page, query, reason):
    status, code, message = refused(page.plain, path_of("orders", "messages", **query))
    assert (status, code) == (400, "INVALID_REQUEST")
    assert reason in message
    assert ask(page.plain, path_of("orders", "messages", **query)).status == 400


def test_topics_and_partitions_that_do_not_exist_are_404(page):
    status, code, message = refused(page.plain, path_of("none", "messages"))
    assert (status, code, message) == (
        404,
        "UNKNOWN_TOPIC_OR_PARTITION",
        "Topic 'none' does not exist.",
    )
    assert refused(page.plain, path_of("orders", "messages", partition=3))[0] == 404
    assert ask(page.plain, path_of("none", "messages.jsonl")).status == 404


def test_without_the_extra_the_page_names_the_package(page, monkeypatch):
    monkeypatch.setitem(sys.modules, "cel", None)
    status, code, message = refused(page.plain, path_of("orders", "messages", where="true"))
    assert (status, code) == (400, "CEL_MISSING")
    assert "common-expression-language>=" in message
    assert sys.executable not in message  # readers of the page need no paths of this machine


def test_a_principal_that_may_not_read_the_topic_sees_nothing(page):
    asked = []

    def deny(principal, operation, resource):
        asked.append((str(operation), str(resource.kind), resource.name))
        return False

    ctx = page.rig.running.ctx
    ctx.authorizer = Deciding(deny)
    try:
        for path in ("messages", "messages.jsonl", "tail", "0/0"):
            answer = ask(page.plain, path_of("orders", path))
            assert answer.status == 403 and "order" not in answer.text.replace("orders", "")
    finally:
        ctx.authorizer = None
    assert set(asked) == {("READ", "TOPIC", "orders")}


def test_a_cursor_of_many_partitions_fits_into_an_address():
    spans = [Span(index, 2**62, 2**62 + 2**40 + index) for index in range(1000, 1128)]
    text = encode_cursor(Cursor(True, 2**62, spans))
    assert len(text) <= 4_000
    again = decode_cursor(text)
    assert (again.backward, again.total) == (True, 2**62)
    assert [(each.index, each.first, each.end) for each in again.spans] == [
        (each.index, each.first, each.end) for each in spans
    ]


@pytest.mark.parametrize(
    "path", ["nested/messages?from=oldest&limit=100&show=json", "nested/0/100?show=json"]
)
def test_the_form_of_records_is_not_computed_on_the_loop(page, path):
    turns_s: list[float] = []  # processor time of the loop's thread in each of its turns
    over = threading.Event()

    async def tick():
        last_s = time.thread_time()
        while not over.is_set():
            await asyncio.sleep(0.001)
            now_s = time.thread_time()
            turns_s.append(now_s - last_s)
            last_s = now_s

    found(page.plain, f"/topics/{path}")  # imports, and opens connections
    ticking = threading.Thread(target=lambda: page.rig.run(tick()))
    ticking.start()
    rows = found(page.plain, f"/topics/{path}")
    over.set()
    ticking.join()
    assert "rows" not in rows or len(rows["rows"]) == 100
    assert max(turns_s) < 0.1  # 0.2 s and more for JSON on several lines


def test_an_offset_without_effect_is_refused_and_one_alone_is_where_records_begin(page):
    rows = found(page.plain, path_of("orders", "messages", offset=1))
    assert rows["from"] == "offset"
    status, code, message = refused(
        page.plain, path_of("orders", "messages", **{"from": "newest", "offset": 1})
    )
    assert (status, code) == (400, "INVALID_REQUEST")
    assert message == "offset has an effect only with from=offset"
