"""Goal: changes by the page do what the commands do, only for the name that was typed.

Method: a gateway in this process, forms as a page sends them, and records read back by librdkafka.
A cluster on this machine is a directory with processes of the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from gateway.admin.client import AdminClient as Client
from gateway.admin.produce import write_records
from gateway.admin.record_json import Record
from gateway.cluster.port import ClusterMember
from gateway.figures.peer_questions import PeerQuestions
from gateway.http.record_search import Bounds
from gateway.http.views import record_changes
from gateway.process.local_cluster import state as cluster_state
from gateway.process.local_cluster.own import OwnCluster, own_cluster
from gateway.process.local_cluster.pids import ProcessId, identify
from gateway.process.local_cluster.services import Size, Web, words_of
from gateway.process.local_cluster.state import State
from ledger.events import events
from tests.gateway.authorizers import Deciding
from tests.gateway.page_rig import ask
from tests.gateway.records_rig import (
    FIRST_MS,
    UNHURRIED,
    check_harmless,
    found,
    hostile,
    pages,
    posted,
)
from tests.peers.processes import Process, wait_until

pytestmark = [pytest.mark.process, pytest.mark.compat]
BINARY = bytes(range(256))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with pages(tmp_path_factory.mktemp("changes")) as started:
        started.create("orders", 2)
        started.create("numbers")
        started.write("numbers", [(f"k{n}", str(n), [], 0) for n in range(50)])
        started.create("some")
        ask(started.writing, "/")  # loads the application
        yield started


def post(page, path, **fields):
    return posted(page.writing, page.site(page.writing), path, **fields)


def read(page, topic, count, partition=0):
    """Records of a partition: key, value, headers and timestamp."""
    consumer = Consumer({"bootstrap.servers": page.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    rows = consumer.consume(count, 30)
    consumer.close()
    assert [each.error() for each in rows] == [None] * count
    return [(each.key(), each.value(), each.headers() or [], each.timestamp()[1]) for each in rows]


def topics(page):
    return AdminClient({"bootstrap.servers": page.bootstrap}).list_topics(timeout=60).topics


# produce


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (
            {"key": "k", "value": "v", "headers": "a=1\r\na=2\nb\nc="},
            (b"k", b"v", [("a", b"1"), ("a", b"2"), ("b", None), ("c", b"")]),
        ),
        ({"value": ""}, (None, b"", [])),
        ({"key": "k", "tombstone": "true"}, (b"k", None, [])),
        ({"form": "hex", "key": "00ff", "value": "c3 28"}, (b"\0\xff", b"\xc3(", [])),
        ({"form": "base64", "value": "AAE="}, (None, b"\0\x01", [])),
        (
            {"record": '{"value": null, "key": "", "headers": [["h", {"base64": "/w=="}]]}'},
            (b"", None, [("h", b"\xff")]),
        ),
        ({"record": '{"value": "v"}'}, (None, b"v", [])),
        ({"key": hostile(1), "value": hostile(2)}, (hostile(1).encode(), hostile(2).encode(), [])),
    ],
)
def test_a_record_is_written_as_it_was_typed(page, fields, wanted):
    name = f"typed-{abs(hash(str(fields)))}"
    page.create(name)
    status, done = post(page, f"/topics/{name}/produce", confirm=name, **fields)
    assert (status, done["offset"], done["sentence"]) == (200, 0, "Wrote offset 0 of partition 0.")
    assert read(page, name, 1)[0][:3] == wanted
    assert done["href"] == f"/topics/{name}/0/0"


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"confirm": "order"}, 400, "NOT_CONFIRMED"),
        ({}, 400, "NOT_CONFIRMED"),
        ({"confirm": "orders", "headers": "=x"}, 400, "INVALID_REQUEST"),
        ({"confirm": "orders", "form": "xml"}, 400, "INVALID_REQUEST"),
        ({"confirm": "orders", "form": "hex", "value": "0"}, 400, "INVALID_REQUEST"),
        ({"confirm": "orders", "form": "base64", "value": "?"}, 400, "INVALID_REQUEST"),
        ({"confirm": "orders", "record": "{"}, 400, "INVALID_REQUEST"),
        ({"confirm": "orders", "partition": "2"}, 400, "UNKNOWN_PARTITION"),
        ({"confirm": "orders", "partition": "-1"}, 400, "INVALID_REQUEST"),
    ],
)
def test_a_record_that_cannot_be_written_is_refused_and_nothing_is(page, fields, status, code):
    answer = post(page, "/topics/orders/produce", **fields)
    assert (answer[0], answer[1]["error"]["code"]) == (status, code)
    assert found(page.writing, "/topics/orders/messages")["total"] == 0


def test_a_topic_that_does_not_exist_is_not_created_by_a_record(page):
    status, done = post(page, "/topics/none/produce", confirm="none", value="v")
    assert (status, done["error"]["code"]) == (404, "UNKNOWN_TOPIC_OR_PARTITION")
    assert "none" not in topics(page)


# copy


def test_a_copy_loses_no_null_no_repeated_header_and_no_byte(page):
    page.create("from", 2)
    page.create("to", 2)
    rows = [
        (None, None, [], 0),
        (b"", b"", [("", b"")], 0),
        (BINARY, BINARY, [("h", BINARY), ("h", None), ("h", b"")], 0),
        ("k", None, [("a", "1"), ("a", "1"), ("b", None)], 1),
        (hostile(0), hostile(1), [(hostile(2), hostile(3))], 1),
        ("large", "x" * 200_000, [], 1),
    ]
    page.write("from", rows, **{"compression.type": "zstd"})
    status, done = post(page, "/topics/from/copy", to="to", confirm="to")
    assert (status, done["copied"], done["next"]) == (200, 6, None)
    assert done["sentence"] == "Copied 6 records to to: searched all 6."
    for partition in range(2):
        assert read(page, "to", 3, partition) == read(page, "from", 3, partition)
    assert read(page, "to", 1)[0][3] == FIRST_MS


def test_a_copy_takes_only_what_matches_and_keeps_the_order(page):
    page.create("even")
    fields = {"from": "offset", "offset": "10", "key": "k?[02468]", "confirm": "even", "to": "even"}
    status, done = post(page, "/topics/numbers/copy", **fields)
    assert (status, done["copied"]) == (200, 20)
    assert [row[1] for row in read(page, "even", 20)] == [b"%d" % n for n in range(10, 50, 2)]


def test_a_copy_that_reaches_a_bound_says_so_and_goes_on(page, monkeypatch):
    monkeypatch.setattr(record_changes, "COPY_BOUNDS", UNHURRIED._replace(records=20))
    page.create("parts", 1)
    cursor, sentences = "", []
    while cursor is not None:
        status, done = post(
            page, "/topics/numbers/copy", to="parts", confirm="parts", cursor=cursor
        )
        assert status == 200
        sentences.append(done["sentence"])
        cursor = done["next"]
    assert sentences == [
        "Copied 20 records to parts: searched 20 of 50: go on.",
        "Copied 20 records to parts: searched 40 of 50: go on.",
        "Copied 10 records to parts: searched all 50.",
    ]
    assert [row[1] for row in read(page, "parts", 50)] == [b"%d" % n for n in range(50)]


def test_a_copy_has_no_more_time_because_its_begin_took_long(page, monkeypatch):
    """The rest of a request's time is for acknowledgements: otherwise it is written twice."""
    looked_up = record_changes.partitions_of

    async def late(*asked):
        await asyncio.sleep(0.4)
        return await looked_up(*asked)

    monkeypatch.setattr(record_changes, "COPY_BOUNDS", Bounds(seconds=0.3))
    monkeypatch.setattr(record_changes, "partitions_of", late)
    page.create("late", 1)
    status, done = post(page, "/topics/numbers/copy", to="late", confirm="late")
    assert status == 200
    assert done["sentence"] == "Copied 0 records to late: searched 0 of 50: go on."


def test_a_copy_that_is_cut_short_has_no_result_that_lacks_records(page):
    """Its cursor is behind what was read, and not behind what was written."""

    async def work():
        taken = asyncio.Event()

        async def records():
            yield Record(b"first", headers=[])
            taken.set()
            await asyncio.sleep(60)

        async with Client(page.bootstrap) as client:
            copying = asyncio.ensure_future(write_records(client, "some", records(), 2.0))
            await taken.wait()
            copying.cancel()
            await asyncio.wait([copying])
            return copying.cancelled()

    assert page.rig.run(work())


async def test_the_end_of_a_copy_ends_its_search_at_once():
    async def records():
        yield Record(b"first")
        yield Record(b"second")

    inner = records()
    outer = record_changes._without_refusal(inner)
    assert (await anext(outer)).value == b"first"
    await outer.aclose()
    assert inner.ag_frame is None


def test_a_connection_that_the_server_closed_is_replaced_and_no_error(page):
    """As after the idle time of connections, while no browser asks."""

    async def work():
        questions, server = PeerQuestions(), page.rig.running.server
        member = ClusterMember(1, "127.0.0.1", server.port, "", "t")
        await questions.ask(member, {"ask": "events"})
        async with Client(page.bootstrap) as client:
            await client.brokers()
            for connection in list(server.registry.connections):
                connection.end_early("idle")
            await asyncio.sleep(0.1)
            assert await client.brokers()
            assert "events" in await questions.ask(member, {"ask": "events"})
            await questions.close()

    page.rig.run(work())


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"to": "some", "confirm": "numbers"}, 400, "NOT_CONFIRMED"),
        ({"to": "numbers", "confirm": "numbers"}, 400, "INVALID_REQUEST"),
        ({"to": "some", "confirm": "some", "from": "newest"}, 400, "INVALID_REQUEST"),
        ({"to": "some", "confirm": "some", "kay": "x"}, 400, "INVALID_REQUEST"),
        ({"to": "gone", "confirm": "gone"}, 404, "UNKNOWN_TOPIC_OR_PARTITION"),
        ({}, 400, "INVALID_REQUEST"),
    ],
)
def test_a_copy_that_is_not_possible_is_refused(page, fields, status, code):
    answer = post(page, "/topics/numbers/copy", **fields)
    assert (answer[0], answer[1]["error"]["code"]) == (status, code)


def test_a_copy_needs_to_write_the_other_topic(page):
    ctx = page.rig.running.ctx
    ctx.authorizer = Deciding(lambda principal, operation, resource: str(operation) != "WRITE")
    try:
        status, done = post(page, "/topics/numbers/copy", to="some", confirm="some")
    finally:
        ctx.authorizer = None
    assert (status, done["error"]["code"]) == (403, "TOPIC_AUTHORIZATION_FAILED")


# topics and groups


def test_a_topic_is_created_altered_and_deleted_by_its_name(page):
    fields = {
        "name": "made",
        "partitions": "3",
        "settings": "retention.ms=1000\ncleanup.policy=compact",
    }
    assert post(page, "/topics/create", **fields)[1]["error"]["code"] == "NOT_CONFIRMED"
    status, done = post(page, "/topics/create", confirm="made", **fields)
    assert (status, done["partitions"], done["sentence"]) == (200, 3, "Created topic made.")
    assert len(topics(page)["made"].partitions) == 3
    again = post(page, "/topics/create", confirm="made", **fields)
    assert (again[0], again[1]["error"]["code"]) == (409, "TOPIC_ALREADY_EXISTS")
    path = "/topics/made/alter"
    status, done = post(page, path, confirm="made", key="retention.ms", value="2000")
    assert (status, done["before"], done["after"]) == (200, "1000", "2000")
    status, done = post(page, path, confirm="made", key="retention.ms", reset="true")
    assert (status, done["before"], done["origin"]) == (200, "2000", "default")
    assert post(page, path, confirm="mode", key="retention.ms", value="1")[0] == 400
    assert post(page, path, confirm="made", key="retention", value="1")[0] == 404
    assert post(page, "/topics/made/delete", confirm="orders")[0] == 400
    assert "made" in topics(page)
    assert post(page, "/topics/made/delete", confirm="made")[1]["sentence"] == "Deleted topic made."
    wait_until(lambda: "made" not in topics(page), "the topic to go")


def test_a_group_is_moved_and_deleted_by_its_name(page):
    page.create("moved", 1)
    page.write("moved", [("k", str(n), [], 0) for n in range(9)])
    consumer = Consumer({"bootstrap.servers": page.bootstrap, "group.id": "a/b <i>"})
    consumer.commit(offsets=[TopicPartition("moved", 0, 2)], asynchronous=False)
    consumer.close()
    path, name = "/groups/a%2Fb%20%3Ci%3E", "a/b <i>"
    status, done = post(page, f"{path}/seek", to="latest", plan="true")
    assert (status, done["executed"], done["offsets"][0]["new_offset"]) == (200, False, 9)
    assert post(page, f"{path}/seek", to="latest", confirm="a/b")[0] == 400
    status, done = post(page, f"{path}/seek", to="-1", confirm=name, topics="moved:0")
    assert (status, done["offsets"][0]["new_offset"]) == (200, 1)
    assert post(page, f"{path}/seek", to="there", confirm=name)[0] == 400
    assert post(page, f"{path}/delete", confirm="x")[0] == 400
    assert post(page, f"{path}/delete", confirm=name)[0] == 200
    for change in (f"{path}/delete", f"{path}/seek"):
        status, done = post(page, change, confirm=name, to="latest")
        assert (status, done["error"]["code"]) == (404, "GROUP_ID_NOT_FOUND")


def test_every_page_and_every_form_is_reached_by_links(page):
    page.create("linked")
    page.write("linked", [("k", "v", [], 0)])
    consumer = Consumer({"bootstrap.servers": page.bootstrap, "group.id": "linked/<b>"})
    consumer.commit(offsets=[TopicPartition("linked", 0, 1)], asynchronous=False)
    consumer.close()
    group = "/groups/linked%2F%3Cb%3E"
    wait_until(lambda: group in ask(page.writing, "/groups").text, "the group to be shown")
    left, shown = ["/"], {}
    while left:
        path = left.pop()
        if path in shown or ("linked" not in path and path.count("/") > 1):
            continue
        answer = ask(page.writing, path)
        assert answer.status == 200, (path, answer.text)
        shown[path] = answer.text
        left += [each.partition("?")[0] for each in re.findall(' href="(/[^"]*)"', answer.text)]
    assert {"/topics/linked/messages", "/topics/linked/0/0", f"{group}/history"} <= shown.keys()
    actions = {each for text in shown.values() for each in re.findall('action="([^"]*)"', text)}
    wanted = {f"/topics/linked/{each}" for each in ("produce", "copy", "alter", "delete")}
    assert wanted | {"/topics/create", f"{group}/seek", f"{group}/delete"} <= actions
    assert 'method="post"' not in ask(page.plain, "/topics/linked").text


def test_each_change_is_an_event_with_its_outcome(page):
    before = events.newest
    post(page, "/topics/orders/produce", confirm="no")
    post(page, "/topics/orders/alter", confirm="orders", key="retention.ms", value="9")
    noted = [
        (each.facts["operation"], each.facts["resource"], each.facts["outcome"])
        for each in events.after(before, 100)
        if each.kind == "change"
    ]
    assert ("WRITE", "TOPIC:orders", "NOT_CONFIRMED") in noted
    assert ("ALTER_CONFIGS", "TOPIC:orders", "NONE") in noted


def test_the_event_of_a_change_is_small_whatever_its_form_names(page):
    before = events.newest
    name = "x" * 30_000
    assert post(page, "/topics/create", name=name, confirm=name)[0] == 409
    noted = [each for each in events.after(before, 100) if each.kind == "change"]
    assert noted and max(len(each.facts["resource"]) for each in noted) == 300


def test_a_page_that_only_reads_has_no_change(page):
    ask(page.plain, "/")
    site = page.site(page.plain)
    for path in ("/topics/orders/produce", "/topics/create", "/groups/g/delete"):
        status, done = posted(page.plain, site, path, confirm="orders")
        assert (status, done["error"]["code"]) == (405, "READ_ONLY")
    assert '<form class="change"' not in ask(page.plain, "/topics/orders/messages").text


# kill and start


@pytest.fixture
def local(tmp_path, page):
    """A cluster on this machine whose first gateway is this process, and whose bookie sleeps."""
    bookie = Process(["tail", "-f", "/dev/null"], tmp_path / "bookie.log")
    size = Size(1, 1)
    processes = {"gateway-1": identify(os.getpid()), "bookie-1": identify(bookie.pid)}
    saved = State(size, dict.fromkeys(size.names, 1), processes)
    cluster_state.save(tmp_path, saved)
    ctx = page.rig.running.ctx
    ctx.local_cluster = OwnCluster(tmp_path, os.getpid())
    try:
        yield SimpleNamespace(directory=tmp_path, state=saved, bookie=bookie)
    finally:
        ctx.local_cluster = None
        bookie.kill()


def test_outside_of_a_local_cluster_there_are_no_processes(page, monkeypatch, tmp_path):
    for path in ("/cluster/processes/bookie-1/kill", "/cluster/processes/bookie-1/start"):
        status, done = post(page, path, confirm="bookie-1")
        assert (status, done["error"]["code"]) == (404, "NOT_FOUND")
    assert ask(page.writing, "/cluster/processes").status == 404
    assert own_cluster() is None
    monkeypatch.setenv("LEDGER_CLUSTER_DIRECTORY", str(tmp_path))
    assert own_cluster().rows() is None
    cluster_state.save(tmp_path, State(Size(1, 1), {}, {"gateway-1": ProcessId(1, 1, "x")}))
    assert own_cluster().rows() is None


def test_a_process_is_killed_by_its_name_and_by_nothing_else(page, local):
    answer = ask(page.writing, "/cluster/processes")
    assert answer.status == 200
    check_harmless(answer.text)
    assert 'action="/cluster/processes/bookie-1/kill"' in answer.text
    assert 'action="/cluster/processes/gateway-1/kill"' not in answer.text
    path = "/cluster/processes/bookie-1/kill"
    assert post(page, path, confirm="bookie")[1]["error"]["code"] == "NOT_CONFIRMED"
    assert local.state.alive("bookie-1")
    assert post(page, path, confirm="bookie-1") == (
        200,
        {"killed": "bookie-1", "sentence": "Killed bookie-1."},
    )
    wait_until(lambda: not local.state.alive("bookie-1"), "the process to end")
    again = post(page, path, confirm="bookie-1")
    assert (again[0], again[1]["error"]["code"]) == (409, "NOT_RUNNING")
    rows = {row["name"]: row for row in found(page.writing, "/cluster/processes")["rows"]}
    assert (rows["bookie-1"]["state"], rows["gateway-1"]["own"]) == ("dead", True)
    for name, status in (("none", 404), ("gateway-1", 409)):
        assert post(page, f"/cluster/processes/{name}/kill", confirm=name)[0] == status


def test_a_process_with_an_old_id_is_not_killed(page, local):
    real = local.state.processes["bookie-1"]
    local.state.processes["bookie-1"] = real._replace(started=real.started - 1)
    cluster_state.save(local.directory, local.state)
    status, done = post(page, "/cluster/processes/bookie-1/kill", confirm="bookie-1")
    assert (status, done["error"]["code"]) == (409, "NOT_RUNNING")
    assert real.alive


def test_a_process_that_runs_is_not_started_twice_and_a_dead_one_is_started(page, local):
    path = "/cluster/processes/bookie-1/start"
    status, done = post(page, path, confirm="bookie-1")
    assert (status, done["error"]) == (
        409,
        {"code": "START_FAILED", "message": "bookie-1 runs already"},
    )
    dead = local.state.processes["bookie-1"]
    local.bookie.kill()
    wait_until(lambda: not dead.alive, "the process to end")
    status, done = post(page, path, confirm="bookie-1")
    assert (status, done["sentence"]) == (200, "Started bookie-1.")
    started = cluster_state.load_existing(local.directory).processes["bookie-1"]
    assert started != dead
    started.send(signal.SIGKILL)
    wait_until(lambda: not started.alive, "the bookie to end")


def test_the_launcher_passes_pages_on_and_remembers_them(tmp_path):
    ports = dict.fromkeys(Size().names, 9)
    words = words_of("gateway-2", ports, tmp_path, Web(9080, True))
    assert words[-3:] == ("--http-port", "9081", "--http-write")
    assert "--http-port" not in words_of("gateway-2", ports, tmp_path)
    assert "--http-port" not in words_of("bookie-2", ports, tmp_path, Web(9080))
    for web in (None, Web(9080), Web(9080, True)):
        cluster_state.save(tmp_path, State(Size(), ports, {}, web))
        assert cluster_state.load(tmp_path).web == web
    document = json.loads((tmp_path / "cluster.json").read_text())
    del document["http_port"], document["http_write"]
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    assert cluster_state.load(tmp_path).web is None
