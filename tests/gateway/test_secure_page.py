"""Goal: a page works behind a port with TLS, SASL and an authorizer, and gives nobody more than the
ACLs of its user do; what gateways ask each other does so too.

Method: a gateway in this process with the files of `gateway dev --secure`, and a page with three
users: one with rights on one topic, one without any, and the super user.
"""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest

from gateway.access import Operation, ResourceType
from gateway.admin.client import AdminClient, AdminError
from gateway.admin.client_settings import ClientSettings
from gateway.admin.groups import list_groups
from gateway.config import GatewayConfig, Listener
from gateway.core.acls import Acl, Pattern, PatternType, Permission
from gateway.handlers import page_connections, private_questions
from gateway.handlers.api import Peer, Request
from gateway.http.password_file import line_of, read_passwords
from gateway.process.secure_dev import secured
from gateway.security.client_keys import link_security
from gateway.wire.client_link import Link
from gateway.wire.private_request import decode_answer
from ledger.command_line.properties import parse_properties
from ledger.errors import NoNode, ReadOnlyStore
from ledger.events import events
from ledger.ports.bookies import Status
from tests.gateway.page_rig import PageRig, ask
from tests.gateway.paper_cluster import PaperCluster, member
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.compat]

PASSWORD = "correct horse"
ORDERS = Pattern(ResourceType.TOPIC, "orders", PatternType.LITERAL)
CLUSTER = Pattern(ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    data = tmp_path_factory.mktemp("page") / "data"
    at = Listener("SASL_SSL", "127.0.0.1", 0, protocol="SASL_SSL")
    config = secured(GatewayConfig(data=data, listeners=(at,)))
    names = ("secure", "listeners", "tls", "sasl", "authorization")
    with PageRig(data, **{name: getattr(config, name) for name in names}) as rig:
        file = data / "passwords"
        users = [line_of(each, PASSWORD) for each in ("alice", "bob", "admin")]
        file.write_text("".join(f"{line}\n" for line in users))
        file.chmod(0o600)
        passwords = read_passwords(file)
        port = rig.serve(write=True, passwords=passwords)
        found = SimpleNamespace(rig=rig, port=port, config=config, passwords=passwords)
        assert get(found, "admin", "/").status == 200
        found.site = rig.applications[port].site
        made = post(found, "admin", "/topics/create", name="orders", confirm="orders")
        assert made.status == 200, made.text
        rig.run(give(rig.running.ctx.acls, "alice"))
        yield found


async def give(acls, user):
    """Let a user read and write orders."""
    rights = [(ORDERS, Operation.READ), (ORDERS, Operation.WRITE), (CLUSTER, Operation.DESCRIBE)]
    for pattern, operation in rights:
        acl = Acl(pattern, f"User:{user}", "*", operation, Permission.ALLOW)
        await acls.add(pattern, [acl])


def headers_of(user):
    written = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    return {"Authorization": f"Basic {written}"}


def get(page, user, path):
    return ask(page.port, path, headers=headers_of(user))


def post(page, user, path, **fields):
    more = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
    body = urlencode({"token": page.site.token, **fields}).encode()
    return ask(page.port, path, "POST", {**headers_of(user), **more}, body)


def test_a_user_writes_and_reads_by_the_page_what_its_acls_allow(page):
    before = events.newest
    sent = post(page, "alice", "/topics/orders/produce", confirm="orders", value="marked")
    assert sent.status == 200, sent.text
    noted = [each.facts for each in events.after(before, 100) if each.kind == "change"]
    assert [(each["principal"], each["resource"]) for each in noted] == [
        ("User:alice", "TOPIC:orders")
    ]
    read = get(page, "alice", "/api/v1/topics/orders/messages?from=oldest")
    assert read.status == 200, read.text
    assert "marked" in read.text


@pytest.mark.parametrize(
    "path",
    [
        *("/api/v1/topics", "/api/v1/topics/orders", "/api/v1/topics/orders/messages", "/metrics"),
        *("/api/v1/groups", "/api/v1/events", "/topics/orders"),
        *("/api/v1/topics/orders/0/0", "/topics/orders/tail", "/api/v1/groups/g/history"),
        *("/security", "/api/v1/security", "/security/users", "/api/v1/security/users"),
        *("/api/v1/security/acls", "/api/v1/security/quotas", "/api/v1/security/audit"),
    ],
)
def test_a_user_without_rights_sees_nothing(page, path):
    answer = get(page, "bob", path)
    assert answer.status == 403, answer.text
    assert "marked" not in answer.text


def test_open_metrics_are_open_with_an_authorizer_too(page):
    port = page.rig.serve(passwords=page.passwords, open_metrics=True)
    assert ask(port, "/metrics").status == 200
    assert ask(port, "/api/v1/topics").status == 401
    assert ask(page.port, "/metrics").status == 401


@pytest.mark.parametrize(
    ("user", "path", "fields"),
    [
        ("bob", "/topics/orders/produce", {"confirm": "orders", "value": "v"}),
        ("bob", "/topics/create", {"name": "mine", "confirm": "mine"}),
        ("alice", "/topics/create", {"name": "mine", "confirm": "mine"}),
        ("alice", "/topics/orders/delete", {"confirm": "orders"}),
        (
            "alice",
            "/topics/orders/alter",
            {"confirm": "orders", "key": "retention.ms", "value": "9"},
        ),
    ],
)
def test_the_page_changes_nothing_that_its_user_may_not(page, user, path, fields):
    answer = post(page, user, path, **fields)
    assert answer.status == 403, answer.text
    assert topics_of(page) == ["orders"]


async def commit(page, *topics):
    """Commit offsets of these topics for the group `readers`, as the super user."""
    async with AdminClient(ClientSettings(page.rig.bootstrap, keys_of(page))) as admin:
        of_0 = {
            "partition_index": 0,
            "committed_offset": 0,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            "group_id": "readers",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": each, "partitions": [of_0]} for each in topics],
        }

        def codes(answer):
            return [each.error_code for topic in answer.topics for each in topic.partitions]

        answer = await admin.at_coordinator(
            "readers", 8, lambda version: fields, codes, version_max=8
        )
        assert [code.value for code in codes(answer)] == [0] * len(topics)


def test_the_page_of_a_group_leaves_out_topics_that_its_user_may_not_describe(page):
    made = post(page, "admin", "/topics/create", name="hidden", confirm="hidden")
    assert made.status == 200, made.text
    page.rig.run(commit(page, "orders", "hidden"))
    group = Pattern(ResourceType.GROUP, "readers", PatternType.LITERAL)
    acl = Acl(group, "User:alice", "*", Operation.READ, Permission.ALLOW)
    page.rig.run(page.rig.running.ctx.acls.add(group, [acl]))
    try:
        path = "/api/v1/groups/readers"
        of_admin, of_alice = get(page, "admin", path), get(page, "alice", path)
        assert (of_admin.status, of_alice.status) == (200, 200), of_alice.text
        assert ("hidden" in of_admin.text, "hidden" in of_alice.text) == (True, False)
        assert "orders" in of_alice.text
    finally:
        post(page, "admin", "/topics/hidden/delete", confirm="hidden")


def test_the_page_of_a_topic_shows_configs_to_those_who_may_describe_them(page):
    fields = {"confirm": "orders", "key": "retention.ms", "value": "86400000"}
    assert post(page, "admin", "/topics/orders/alter", **fields).status == 200
    shown = [get(page, each, "/api/v1/topics/orders").text for each in ("admin", "alice")]
    assert ["86400000" in each for each in shown] == [True, False]


def test_the_page_of_security_shows_what_its_user_may_describe(page):
    whole = get(page, "admin", "/api/v1/security")
    assert whole.status == 200, whole.text
    found = json.loads(whole.text)
    assert [row["protocol"] for row in found["listeners"]] == ["SASL_SSL"]
    assert "SCRAM-SHA-512" in found["listeners"][0]["mechanisms"]
    assert "admin" in [row["user"] for row in found["users"]["rows"]]
    assert "User:alice" in [row["principal"] for row in found["acls"]["rows"]]
    assert get(page, "admin", "/security").status == 200
    part = json.loads(get(page, "alice", "/api/v1/security").text)
    assert (part["listeners"], part["quotas"]) == (None, None)
    assert part["users"] == found["users"]
    text = get(page, "alice", "/security").text
    assert "need DESCRIBE_CONFIGS" in text and "User:alice may not do" in text
    assert get(page, "alice", "/api/v1/security/acls").status == 200
    assert get(page, "alice", "/api/v1/security/quotas").status == 403
    assert get(page, "admin", "/api/v1/security/quotas").status == 200


def test_the_history_of_a_group_is_there_although_the_ledger_port_is_closed(page):
    assert page.rig.running.ledger_port is None
    page.rig.run(commit(page, "orders"))
    path = "/groups/readers/history"
    found = get(page, "admin", f"/api/v1{path}")
    assert found.status == 200, found.text
    rows = json.loads(found.text)["rows"]
    assert "orders" in [row["topic"] for row in rows if row["offset"] is not None]
    assert get(page, "admin", path).status == 200
    overview = json.loads(get(page, "admin", "/api/v1/overview").text)
    assert overview["ledgers_missing"] is None


def test_the_page_and_the_command_show_the_type_of_a_group(page):
    async def joined():
        async with AdminClient(ClientSettings(page.rig.bootstrap, keys_of(page))) as admin:
            fields = {
                "group_id": "newer",
                "member_id": "AAAAAAAAAAAAAAAAAAAAAQ",
                "member_epoch": 0,
                "instance_id": None,
                "rack_id": None,
                "rebalance_timeout": 30_000,
                "subscribed_topic_names": ["orders"],
                "server_assignor": None,
                "topic_partitions": [],
            }
            answer = await admin.at_coordinator(
                "newer", 68, lambda version: fields, lambda answer: [answer.error_code]
            )
            assert answer.error_code.value == 0, answer.error_message
            return {row["group"]: row["type"] for row in await list_groups(admin)}

    page.rig.run(commit(page, "orders"))
    types = {"newer": "consumer", "readers": "classic"}
    assert types.items() <= page.rig.run(joined()).items()
    for name, kind in types.items():
        assert json.loads(get(page, "admin", f"/api/v1/groups/{name}").text)["type"] == kind

    def listed():
        rows = json.loads(get(page, "admin", "/api/v1/groups").text)["rows"]
        return types.items() <= {row["group"]: row["type"] for row in rows}.items()

    wait_until(listed, "both groups in the list")


def test_the_page_of_a_record_and_segments_are_there_although_the_ledger_port_is_closed(page):
    sent = post(page, "admin", "/topics/orders/produce", confirm="orders", value="explained")
    assert sent.status == 200, sent.text
    found = get(page, "admin", "/api/v1/topics/orders/0/0")
    assert found.status == 200, found.text
    shown = json.loads(get(page, "admin", "/api/v1/topics/orders").text)
    assert shown["segments_missing"] is None
    assert len(shown["rows"][0]["segment_rows"]) == 1


def test_a_reader_in_the_process_can_change_nothing_and_sees_no_keys_of_users(page):
    page.rig.run(commit(page, "orders"))  # there is a ledger

    async def work():
        ctx = page.rig.running.ctx
        store, bookies = await ctx.own_ledgers()
        (bookie,) = bookies.registered()
        ledger = (await ctx.streams.client.list_ledgers())[0]
        assert (await bookies.read(bookie, ledger, 0, fence_key=b"")).status is Status.READ_ONLY
        assert (await bookies.fence_many(bookie, [(ledger, b"")]))[0].status is Status.READ_ONLY
        assert await bookies.write_lac(bookie, ledger, b"", 0) is Status.READ_ONLY
        assert await bookies.end_limbo(bookie, ledger, b"") is Status.READ_ONLY
        assert bookies.available() == ()
        added = asyncio.get_running_loop().create_future()
        bookies.add(bookie, ledger, 0, b"", (b"x",), added.set_result)
        assert await added is Status.READ_ONLY
        for change in (
            store.set("/gateway", b"", 0),
            store.create("/gateway/x"),
            store.delete("/gateway"),
            store.multi([]),
        ):
            with pytest.raises(ReadOnlyStore):
                await change
        assert "scram" not in await store.children("/gateway")
        assert [each for each in await store.read_tree("/gateway") if "/scram" in each] == []
        assert [each for each in await store.paths("/") if "/scram" in each] == []
        assert not await store.exists("/gateway/scram")
        with pytest.raises(NoNode):
            await store.get("/gateway/scram")
        await store.close()

    page.rig.run(work())
    assert get(page, "admin", "/api/v1/topics").status == 200  # the store is still open


def test_a_change_ends_whose_user_is_not_taken_over(page, monkeypatch):
    """Otherwise it would be made as the gateway itself, which is a super user."""

    async def refuse(request, ctx):
        return {"error": "SASL_AUTHENTICATION_FAILED", "message": "no page has this key"}

    monkeypatch.setattr(page_connections, "accept", refuse)
    answer = post(page, "admin", "/topics/create", name="mine", confirm="mine")
    assert answer.status == 409, answer.text
    assert topics_of(page) == ["orders"]


def topics_of(page):
    names = [each.name for each in page.rig.running.ctx.catalog.all()]
    return [each for each in names if each != "__consumer_offsets"]


def keys_of(page):
    lines = parse_properties((page.config.secure / "client.properties").read_bytes())
    return {each.key: each.value for each in lines}


def test_the_commands_of_a_user_without_rights_are_refused_privately_too(page):
    """A private request is decided by the same table: bob is a user of the port as well."""
    from gateway.admin.users import add_user

    async def work():
        settings = ClientSettings(page.rig.bootstrap, keys_of(page))
        async with AdminClient(settings) as admin:
            await add_user(admin, "bob", PASSWORD, ["SCRAM-SHA-512"])
        keys = keys_of(page) | {"sasl.username": "bob", "sasl.password": PASSWORD}
        host, port = page.rig.bootstrap.split(":")
        link = Link(host, int(port), 30.0, security=link_security("SASL_SSL", keys))
        await link.open(30.0)
        try:
            codes = []
            for asked in ("events", "process", "acl", "page_key", "topics", "slow", "page"):
                with pytest.raises(AdminError) as refused:
                    await link.ask_privately({"ask": asked, "key": "k", "node_id": 0})
                codes.append(refused.value.code)
            return codes
        finally:
            await link.close()

    denied = ["CLUSTER_AUTHORIZATION_FAILED"] * 6
    assert page.rig.run(work()) == [*denied, "SASL_AUTHENTICATION_FAILED"]


def test_a_user_of_scram_logs_in_at_the_page_until_it_is_deleted(page):
    from gateway.admin.users import add_user, delete_user

    async def with_admin(change, *words):
        async with AdminClient(ClientSettings(page.rig.bootstrap, keys_of(page))) as admin:
            await change(admin, *words)

    assert get(page, "carl", "/api/v1/topics").status == 401
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        page.rig.run(with_admin(add_user, "carl", PASSWORD, [mechanism]))
        for _ in range(2):  # the second time it is known
            assert get(page, "carl", "/api/v1/topics").status == 403  # who it is, and no rights
        page.rig.run(with_admin(delete_user, "carl", []))
        assert get(page, "carl", "/api/v1/topics").status == 401


def test_a_name_of_the_file_has_the_password_of_the_file(page):
    from gateway.admin.users import add_user

    async def work():
        async with AdminClient(ClientSettings(page.rig.bootstrap, keys_of(page))) as admin:
            await add_user(admin, "alice", "another", ["SCRAM-SHA-512"])

    page.rig.run(work())
    written = base64.b64encode(b"alice:another").decode()
    headers = {"Authorization": f"Basic {written}"}
    assert ask(page.port, "/api/v1/topics", headers=headers).status == 401
    assert get(page, "alice", "/api/v1/topics").status == 200


def test_another_gateway_confirms_the_key_of_a_page_by_tls_and_a_login(page):
    ctx = page.rig.running.ctx
    address = {"peer_host": "127.0.0.1", "peer_port": page.rig.running.port}
    cluster = PaperCluster(7, [member(0)._replace(**address), member(7)])
    cluster.peer_security = ctx.cluster.peer_security
    other = SimpleNamespace(cluster=cluster, page_keys={}, questions={}, allowed=None)
    ctx.page_keys["k"] = "User:alice"
    peer = Peer("10.0.0.7", 50_000, "10.0.0.1", 9_092)
    asked = Request(32_100, 0, 1, None, peer, {"ask": "page", "key": "k", "node_id": 0})

    async def work():
        return decode_answer(b"".join(await private_questions.handle(asked, other)))[1]

    assert page.rig.run(work()) == {"node_id": 7}
    assert (asked.peer.principal, ctx.page_keys) == ("User:alice", {})
