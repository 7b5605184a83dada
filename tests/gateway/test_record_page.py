"""Goal: the page of a record shows what `gateway explain` finds, and its content; groups travel in
time.

Method: a gateway in this process with three bookies; the JSON of the page is compared with the
command, and its HTML with a parser.
"""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from gateway.http.life_drawing import draw_life
from tests.gateway.admin_commands import run
from tests.gateway.page_rig import PageRig, ask
from tests.gateway.records_rig import (
    HOSTILE,
    Elements,
    Pages,
    check_harmless,
    found,
    hostile,
    path_of,
    posted,
    refused,
)

pytestmark = [pytest.mark.process, pytest.mark.compat]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    data = tmp_path_factory.mktemp("record") / "data"
    settings = {"ledger_port": 0, "any_ledger_port": True, "bookies": 3}
    with PageRig(data, **settings) as rig:
        started = Pages(rig)
        started.create("orders", 2, 3)
        started.write(
            "orders",
            [
                (f"k{n}", json.dumps({"n": n}), [("trace", "a"), ("trace", None)], 1)
                for n in range(9)
            ],
        )
        started.create("hostile")
        started.write(
            "hostile", [(hostile(n), hostile(n), [(hostile(n), hostile(n))], 0) for n in range(20)]
        )
        started.create("large")
        started.write("large", [("k", "x" * 300_000, [], 0)])
        started.create("cut")
        started.write("cut", [("k", str(n), [], 0) for n in range(9)])
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        for each in admin.delete_records([TopicPartition("cut", 0, 5)]).values():
            each.result(60)
        yield started


def committed(page, group, *offsets):
    """The group commits these offsets of orders/1, one after the other, and leaves."""
    consumer = Consumer({"bootstrap.servers": page.bootstrap, "group.id": group})
    for offset in offsets:
        consumer.commit(offsets=[TopicPartition("orders", 1, offset)], asynchronous=False)
    consumer.close()


def explained(page, *words):
    """Return what the command prints. It has its own process: gRPC serves one loop of each."""
    code, out, errors = run("explain", *words, "-o", "json", bootstrap=page.bootstrap)
    assert (code, errors) == (0, "")
    return json.loads(out)


# a record's life


def test_the_page_shows_what_explain_prints(page):
    shown = found(page.plain, path_of("orders", "1/4"))
    printed = explained(page, "orders/1@4")
    assert {key: shown[key] for key in printed} == printed
    assert shown["content"]["value"] == '{"n": 4}'
    assert shown["content"]["headers"] == [["trace", "a"], ["trace", None]]
    times = shown["acknowledged"]["times"]
    assert {each["bookie"] for each in times} == {each["bookie"] for each in shown["copies"]}


def test_the_drawing_and_the_list_have_every_step(page):
    answer = ask(page.plain, path_of("orders", "1/4"))
    assert answer.status == 200
    seen = check_harmless(answer.text)
    shown = found(page.plain, path_of("orders", "1/4"))
    steps = shown["drawing"]["steps"]
    titles = [step["title"] for step in steps]
    assert titles[:4] == ["Client", "Gateway", "Segment", "Ledger and entry"]
    assert titles[4:] == [*(f"Bookie {each['bookie']}" for each in shown["copies"]), "When it goes"]
    assert (seen.tags["svg"], seen.tags["rect"], seen.tags["path"]) == (1, 8, 7)
    assert seen.tags["li"] >= len(steps)
    assert "style" not in seen.attributes
    text = " ".join(seen.texts)
    for copy in shown["copies"]:
        assert f"{copy['file']} at {copy['position']}, {copy['length']} bytes" in text
    for each in shown["acknowledged"]["times"]:
        assert f"acknowledged after {each['after_ms']:.1f} ms" in text
    bottoms = [step["y"] + step["height"] for step in steps]
    assert all(step["y"] > bottom for step, bottom in zip(steps[1:], bottoms, strict=False))
    assert bottoms[-1] < shown["drawing"]["height"]


def test_a_bookie_that_is_away_and_a_lost_leader_are_steps(page):
    shown = found(page.plain, path_of("orders", "1/4"))
    copies = [
        {**shown["copies"][0], "status": "away", "has": "unknown", "file": None},
        {**shown["copies"][1], "has": "lost"},
    ]
    changed = {
        **shown,
        "leader": {"node": None, "address": None, "epoch": None},
        "copies": copies,
        "acknowledged": {**shown["acknowledged"], "times": None, "at_least": None},
    }
    steps = draw_life(changed)["steps"]
    assert [step["state"] for step in steps] == [
        "plain",
        "warn",
        "plain",
        "plain",
        "warn",
        "fail",
        "plain",
    ]
    assert "no leader now" in steps[1]["lines"]
    assert "not acknowledged yet" in steps[3]["lines"]


@pytest.mark.parametrize(
    ("place", "status", "code", "sentence"),
    [
        ("orders/1/9", 404, "NOT_WRITTEN_YET", "not written yet: ends at 9"),
        ("orders/0/0", 404, "NOT_WRITTEN_YET", "not written yet: ends at 0"),
        ("cut/0/2", 404, "OFFSET_DELETED", "offset 2 was deleted by truncation; the first is 5"),
        ("orders/7/0", 404, "UNKNOWN_TOPIC_OR_PARTITION", "has no partition 7"),
        ("none/0/0", 404, "UNKNOWN_TOPIC_OR_PARTITION", "Topic 'none' does not exist"),
        ("orders/x/0", 404, "NOT_FOUND", "a record is at"),
        ("orders/0/-1", 404, "NOT_FOUND", "a record is at"),
        (f"orders/0/{'9' * 5000}", 404, "NOT_FOUND", "a record is at"),
        (f"orders/0/{2**63}", 400, "INVALID_REQUEST", "never as large"),
        (f"orders/{2**31}/0", 400, "INVALID_REQUEST", "never as large"),
        ("orders/1/0?show=xml", 400, "INVALID_REQUEST", "show must be one of"),
    ],
)
def test_an_offset_without_a_record_is_a_page_with_its_sentence(
    page, place, status, code, sentence
):
    path = f"/topics/{place}"
    assert refused(page.plain, path)[:2] == (status, code)
    assert sentence in refused(page.plain, path)[2]
    answer = ask(page.plain, path)
    assert answer.status == status
    assert sentence.split("'")[0] in "".join(Elements(answer.text).texts)


def test_hostile_content_adds_no_element(page):
    for offset in range(20):
        show = ("text", "json", "hex")[offset % 3]
        check_harmless(ask(page.plain, path_of("hostile", f"0/{offset}", show=show)).text)
    shown = found(page.plain, path_of("hostile", "0/0"))
    assert shown["content"]["value"] == hostile(0)


def test_a_large_value_is_cut_and_its_file_is_whole(page):
    shown = found(page.plain, path_of("large", "0/0"))
    assert shown["content"]["value_cut"] and len(shown["content"]["value"]) == 256 * 1024
    links = Elements(ask(page.plain, path_of("large", "0/0")).text).urls
    (link,) = [each for each in links if "messages.jsonl" in each]
    (line,) = ask(page.plain, link).text.splitlines()
    assert json.loads(line)["value"] == "x" * 300_000


def test_hidden_values_are_not_on_the_page_of_a_record(page):
    answer = ask(page.hidden, path_of("orders", "1/4"))
    assert answer.status == 200 and "trace" not in answer.text
    shown = found(page.hidden, path_of("orders", "1/4"))["content"]
    assert (shown["key"], shown["value"], shown["headers"]) == (None, None, [])
    assert shown["value_bytes"] == 8


# time travel


def test_a_time_shows_what_a_restore_would_do_and_does_it(page):
    committed(page, "travel", 2, 5)
    committed(page, "travel", 9)
    path = "/groups/travel/history"
    now = found(page.plain, path)
    assert [row["offset"] for row in now["rows"] if row["offset"] is not None] == [9, 5, 2]
    (row,) = now["offsets"]
    assert (row["current_offset"], row["offset_then"], row["does"]) == (9, 9, "stays")
    at_ms = next(row["at_ms"] for row in now["rows"] if row["offset"] == 5)
    then = found(page.plain, f"{path}?at={at_ms}")
    (row,) = then["offsets"]
    assert (row["offset_then"], row["change"], row["does"]) == (5, -4, "goes back by 4")
    assert then["idle"] and then["changed"] == 1
    html = ask(page.writing, f"{path}?at={at_ms}").text
    seen = check_harmless(html)
    assert seen.tags["input"] >= 4 and f'value="{at_ms}"' in html
    site = page.site(page.writing)
    wrong = posted(page.writing, site, "/groups/travel/restore", at=at_ms, confirm="trave")
    assert (wrong[0], wrong[1]["error"]["code"]) == (400, "NOT_CONFIRMED")
    assert offset_of(page, "travel") == 9
    done = posted(page.writing, site, "/groups/travel/restore", at=at_ms, confirm="travel")
    assert (done[0], done[1]["sentence"]) == (200, "Moved 1 of 1 offsets of group travel.")
    assert offset_of(page, "travel") == 5


def offset_of(page, group):
    admin = AdminClient({"bootstrap.servers": page.bootstrap})
    asked = [ConsumerGroupTopicPartitions(group)]
    (answer,) = admin.list_consumer_group_offsets(asked).values()
    (row,) = answer.result(60).topic_partitions
    return row.offset


def test_a_history_has_pages(page):
    committed(page, "pages", *range(8))
    path = "/groups/pages/history?limit=3"
    offsets, cursor = [], ""
    while cursor is not None:
        answer = found(page.plain, f"{path}&cursor={cursor}")
        offsets += [row["offset"] for row in answer["rows"]]
        cursor = answer["next"]
    assert [each for each in offsets if each is not None] == list(range(7, -1, -1))
    assert len(offsets) == answer["total"]


def test_times_out_of_bounds_are_brought_to_the_history(page):
    committed(page, "bounds", 3)
    for at in ("0", "1", "9" * 15):
        answer = found(page.plain, f"/groups/bounds/history?at={at}")
        assert answer["since_ms"] <= answer["at_ms"] <= answer["until_ms"]
    for query in ("at=now", "at=-1", "at=" + "9" * 16, "cursor=x"):
        assert refused(page.plain, f"/groups/bounds/history?{query}")[0] == 400
    assert refused(page.plain, "/groups/none/history")[:2] == (404, "GROUP_ID_NOT_FOUND")


def test_names_of_hostile_groups_are_text(page):
    for name in HOSTILE[::2]:
        if "\x00" in name:
            continue
        committed(page, name, 1)
        answer = ask(page.writing, f"/groups/{quote(name, safe='')}/history")
        assert answer.status == 200, (name, answer.text)
        check_harmless(answer.text)
