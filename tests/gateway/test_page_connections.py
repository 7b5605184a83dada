"""Goal: a change by the page is one event, with its principal and its browser's address.

Method: a gateway in this process with a page that needs a password, and a second gateway that is
only a handler, as the coordinator of a group of the page would be.
"""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient as Admin
from confluent_kafka.admin import NewTopic

from gateway.access import ANONYMOUS
from gateway.admin.client import AdminClient
from gateway.handlers import page_connections, private_questions
from gateway.handlers.api import Peer, Request
from gateway.handlers.changes import note_change
from gateway.http.password_file import line_of, read_passwords
from gateway.wire.private_request import decode_answer
from ledger.events import events
from tests.gateway.page_rig import PageRig, ask
from tests.gateway.paper_cluster import PaperCluster, member

pytestmark = [pytest.mark.process, pytest.mark.compat]

PASSWORD = "correct horse"
ALICE = "User:alice"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    directory = tmp_path_factory.mktemp("page")
    file = directory / "passwords"
    file.write_text(f"{line_of('alice', PASSWORD)}\n")
    file.chmod(0o600)
    with PageRig(directory / "data") as rig:
        port = rig.serve(write=True, passwords=read_passwords(file))
        written = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        headers = {"Authorization": f"Basic {written}"}
        assert ask(port, "/", headers=headers).status == 200
        yield SimpleNamespace(rig=rig, port=port, headers=headers, site=rig.applications[port].site)


def post(page, path, **fields):
    headers = {
        **page.headers,
        "Content-Type": "application/x-www-form-urlencoded",
        "Sec-Fetch-Site": "same-origin",
    }
    body = urlencode({"token": page.site.token, **fields}).encode()
    answer = ask(page.port, path, "POST", headers, body)
    assert answer.status == 200, answer.text
    return json.loads(answer.body)


def changes(before):
    """What the changes since then were: by whom, from where, and what."""
    return [
        tuple(each.facts[key] for key in ("principal", "address", "operation", "resource"))
        for each in events.after(before, 1_000)
        if each.kind == "change"
    ]


def test_each_change_by_the_page_is_one_event_of_its_principal(page):
    before = events.newest
    post(page, "/topics/create", name="made", confirm="made")
    post(page, "/topics/made/alter", confirm="made", key="retention.ms", value="9")
    post(page, "/topics/made/produce", confirm="made", value="v")
    consumer = Consumer({"bootstrap.servers": page.rig.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("made", 0, 1)], asynchronous=False)
    consumer.close()
    post(page, "/groups/readers/seek", confirm="readers", to="earliest")
    post(page, "/groups/readers/delete", confirm="readers")
    post(page, "/topics/made/delete", confirm="made")
    assert changes(before) == [
        (ALICE, "127.0.0.1", "CREATE", "TOPIC:made"),
        (ALICE, "127.0.0.1", "ALTER_CONFIGS", "TOPIC:made"),
        (ALICE, "127.0.0.1", "WRITE", "TOPIC:made"),
        (ALICE, "127.0.0.1", "ALTER", "GROUP:readers"),
        (ALICE, "127.0.0.1", "DELETE", "GROUP:readers"),
        (ALICE, "127.0.0.1", "DELETE", "TOPIC:made"),
    ]
    assert page.rig.running.ctx.page_keys == {}


def test_a_change_by_another_client_is_an_event_as_before(page):
    before = events.newest
    admin = Admin({"bootstrap.servers": page.rig.bootstrap})
    admin.create_topics([NewTopic("theirs", 1, 1)])["theirs"].result(60)
    assert changes(before) == [(ANONYMOUS, "127.0.0.1", "CREATE", "TOPIC:theirs")]


def asked_as_page(key, node_id):
    peer = Peer("10.0.0.7", 50_000, "10.0.0.1", 9_092)
    return Request(32_100, 0, 1, None, peer, {"ask": "page", "key": key, "node_id": node_id})


async def answer_of(request, ctx):
    return decode_answer(b"".join(await private_questions.handle(request, ctx)))[1]


def other_gateway(page):
    """A gateway that knows the page's gateway as a member of its cluster."""
    ctx = page.rig.running.ctx
    address = {"peer_host": "127.0.0.1", "peer_port": page.rig.running.port}
    cluster = PaperCluster(7, [member(ctx.cluster.node_id)._replace(**address), member(7)])
    return SimpleNamespace(cluster=cluster, page_keys={}, questions={}, allowed=None)


def test_another_gateway_leaves_changes_to_the_page_once_its_gateway_confirms_the_key(page):
    ctx, other = page.rig.running.ctx, other_gateway(page)
    ctx.page_keys["k"] = ALICE

    async def work():
        request = asked_as_page("k", ctx.cluster.node_id)
        found = await answer_of(request, other)
        again = await answer_of(asked_as_page("k", ctx.cluster.node_id), other)
        return request, found, again

    request, found, again = page.rig.run(work())
    assert (found, request.peer.principal) == ({"node_id": 7}, ALICE)
    assert again["error"] == "SASL_AUTHENTICATION_FAILED"  # a key serves one connection
    before = events.newest
    note_change(request, "DELETE", "GROUP:g", "NONE")
    assert changes(before) == []


@pytest.mark.parametrize("node_id", [0, 7, 9, None, "0", True])
def test_a_client_that_brings_no_key_of_a_page_cannot_hide_its_changes(page, node_id):
    ctx, other = page.rig.running.ctx, other_gateway(page)
    ctx.page_keys["k"] = ALICE

    async def work(asked):
        request = asked_as_page("guessed", node_id)
        return request, await answer_of(request, asked)

    try:
        for asked in (ctx, other):
            request, found = page.rig.run(work(asked))
            assert found["error"] == "SASL_AUTHENTICATION_FAILED"
            before = events.newest
            note_change(request, "DELETE", "GROUP:g", "NONE")
            assert changes(before) == [(ANONYMOUS, "10.0.0.7", "DELETE", "GROUP:g")]
    finally:
        ctx.page_keys.clear()


def test_a_gateway_that_refuses_is_changed_all_the_same(page, monkeypatch):
    """One of an earlier release does not know the question; it notes the change too."""
    monkeypatch.setattr(page_connections, "accept", refuse)
    before = events.newest
    post(page, "/topics/create", name="old", confirm="old")
    assert changes(before) == [
        (ANONYMOUS, "127.0.0.1", "CREATE", "TOPIC:old"),
        (ALICE, "127.0.0.1", "CREATE", "TOPIC:old"),
    ]


async def refuse(request, ctx):
    return {"error": "UNSUPPORTED_VERSION", "message": "this gateway answers only: events"}


def test_reads_of_the_page_are_made_without_a_principal(page):
    async def work():
        client = await page.site.client()
        async with AdminClient(page.site.settings_for(None)) as other:
            return (await client.brokers()) == (await other.brokers())

    assert page.rig.run(work())
    assert page.rig.running.ctx.page_keys == {}
