"""Goal: the page of security shows who may do what, page by page. It shows nothing that is secret,
and nothing that its reader may not see.

Method: the views over the settings of a gateway in memory, on virtual time; templates are drawn
with hostile names. tests/gateway/test_secure_page.py asks a gateway with TLS and users.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from itertools import product
from types import SimpleNamespace

import pytest

from gateway.access import (
    CLUSTER,
    AuditEvent,
    Operation,
    PageClient,
    ResourceType,
    auditing,
)
from gateway.config import Authorization, HttpConfig, Listener, SaslConfig
from gateway.core.acls import Acl, Pattern, PatternType, Permission
from gateway.core.client_quotas import QuotaOp
from gateway.core.scram_credentials import Mechanism, Upsertion
from gateway.handlers.rights import RIGHTS, Right
from gateway.http.pages import Asked, Refused
from gateway.http.rows_security import PAGES
from gateway.http.views.audit import audit
from gateway.http.views.security import security
from gateway.http.views.security_lists import acls, quotas, users
from gateway.security import newest_lines
from gateway.security.audit_log import AuditLog
from gateway.security.newest_lines import NewestLines
from gateway.settings.stored_acls import StoredAcls
from ledger.ports.metadata import ANY_VERSION
from tests.gateway.authorizers import Deciding
from tests.gateway.drawn_page import Tags, Templates
from tests.gateway.handler_cluster import loaded_cluster
from tests.gateway.paper_cluster import PaperCluster, member

HOSTILE = 'a/b\'; rm -rf "$HOME" <script>%2F\n\ud800'
TEXT = HOSTILE.encode(errors="replace").decode()
SALT, KEY = b"salt-of-the-user", bytes(range(64))
ALICE = PageClient("User:alice", "10.0.0.7", 5, "OUT", "SCRAM-SHA-256")


@asynccontextmanager
async def started(authorizer="standard", **settings):
    """Yield a site whose gateway has an authorizer, but no clients."""
    authorization = Authorization(authorizer=authorizer)
    async with loaded_cluster(authorization=authorization, **settings) as cluster:
        ctx = cluster.context
        if authorizer:
            ctx.acls = StoredAcls(cluster.store, authorization)
            await ctx.acls.load()
        yield SimpleNamespace(ctx=ctx, store=cluster.store)
        if ctx.acls is not None:
            await ctx.acls.close()


def page_named(name):
    return next(each for each in PAGES if each.name == name)


def asked(limit=50, cursor=None, **query):
    return Asked({}, query, "User:ANONYMOUS", cursor=cursor, limit=limit)


async def add_users(site, *names):
    for name in names:
        for mechanism, count in ((Mechanism.SHA_256, 4096), (Mechanism.SHA_512, 8192)):
            await site.ctx.stored.scram.alter(Upsertion(name, mechanism, count, SALT, KEY))


async def add_acl(site, resource, principal="User:alice", operation=Operation.READ, **more):
    pattern = Pattern(ResourceType.TOPIC, resource, PatternType.LITERAL)
    permission = more.get("permission", Permission.ALLOW)
    await site.ctx.acls.add(pattern, [Acl(pattern, principal, "*", operation, permission)])


async def add_quota(site, entity, **limits):
    ops = [QuotaOp(key, value) for key, value in limits.items()]
    await site.ctx.stored.quotas.alter(entity, ops, validate_only=False)


async def all_rows(view, site, limit, **query):
    """Return the rows of all pages, after a look at their sizes."""
    found, cursor = [], None
    while True:
        page = await view(asked(limit, cursor, **query), site)
        assert len(page["rows"]) <= limit
        found += page["rows"]
        cursor = page["next"]
        if cursor is None:
            return found


# -- lists ---------------------------------------------------------------------------------------


async def test_users_have_mechanisms_and_iterations_and_no_secret():
    async with started() as site:
        await add_users(site, "bob", "ann")
        found = await users(asked(), site)
        whole = {"mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"], "iterations": [4096, 8192]}
        assert found["rows"] == [{"user": "ann", **whole}, {"user": "bob", **whole}]
        credential = site.ctx.stored.scram.credential("ann", Mechanism.SHA_512)
        shown = json.dumps([found, await security(asked(), site)])
        stored = "".join(node.data.decode() for node in (await nodes(site)).values())
        secrets = [*json_values(stored, "salt"), *json_values(stored, "stored_key")]
        assert credential is not None and len(secrets) == 8
        assert [each for each in secrets if each in shown] == []


async def nodes(site):
    return await site.store.read_tree("/gateway/scram")


def json_values(text, key):
    return [part.partition('"')[0] for part in text.replace(" ", "").split(f'"{key}":"')[1:]]


async def test_users_are_found_by_a_text_and_by_a_glob_and_paged():
    async with started() as site:
        await add_users(site, *(f"app-{number:02}" for number in range(25)), "other")
        names = [row["user"] for row in await all_rows(users, site, 7)]
        assert names == [*(f"app-{number:02}" for number in range(25)), "other"]
        assert (await users(asked(search="APP-1"), site))["total"] == 10
        assert (await users(asked(search="app-?[05]"), site))["total"] == 5


@pytest.mark.parametrize("limit", [1, 3, 4, 50])
async def test_pages_of_acls_lack_none_and_have_none_twice(limit):
    operations = (Operation.WRITE, Operation.READ)
    async with started() as site:
        for each in product(("b", "a", "c"), ("User:z", "User:y"), operations):
            await add_acl(site, *each)
        found = await all_rows(acls, site, limit)
        places = [(row["resource_name"], row["principal"], row["operation"]) for row in found]
        assert places == sorted(places)
        assert len(set(places)) == len(places) == 12
        assert (await acls(asked(limit), site))["total"] == 12


async def test_acls_are_found_by_principal_and_by_resource():
    async with started() as site:
        await add_acl(site, "orders", "User:alice")
        await add_acl(site, "orders", "User:bob", permission=Permission.DENY)
        await add_acl(site, "invoices", "User:alice")
        found = await acls(asked(principal="alice", resource="TOPIC:ord*"), site)
        assert found["rows"] == [
            {
                "principal": "User:alice",
                "permission": "ALLOW",
                "operation": "READ",
                "resource_type": "TOPIC",
                "resource_name": "orders",
                "pattern_type": "LITERAL",
                "host": "*",
            }
        ]
        assert (await acls(asked(principal="User:bob"), site))["total"] == 1
        assert (await acls(asked(resource="group:"), site))["total"] == 0


async def test_quotas_have_a_row_for_each_limit():
    async with started() as site:
        await add_quota(site, {"user": "bob"}, producer_byte_rate=10.0, request_percentage=2.5)
        await add_quota(site, {"user": None, "client-id": "app"}, consumer_byte_rate=7.0)
        await add_quota(site, {"ip": "10.0.0.7"}, connection_creation_rate=float("nan"))
        found = await all_rows(quotas, site, 1)
        shown = [(row["entity_text"], row["key"], row["value"]) for row in found]
        assert shown == [
            ("client-id=app, user=<default>", "consumer_byte_rate", 7),
            ("ip=10.0.0.7", "connection_creation_rate", "nan"),
            ("user=bob", "producer_byte_rate", 10),
            ("user=bob", "request_percentage", 2.5),
        ]
        assert found[0]["entity"] == {"client-id": "app", "user": None}
        assert (await quotas(asked(search="user=bob"), site))["total"] == 2
        json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("view", [users, acls, quotas, audit])
async def test_a_cursor_of_no_page_is_refused(view):
    async with started() as site:
        for cursor in ("x", "-1", "1" * 40, "١"):
            with pytest.raises(Refused) as refused:
                await view(asked(cursor=cursor), site)
            assert refused.value.status == 400
        beyond = await view(asked(cursor="999999999"), site)
        assert (beyond["rows"], beyond["next"]) == ([], None)


async def test_without_an_authorizer_there_are_no_acls_and_everything_else_is_there():
    async with started("") as site:
        await add_users(site, "ann")
        found = await security(asked(), site)
        assert (found["authorizer"], found["acls"]["authorizer"]) == (None, False)
        assert found["acls"]["rows"] == []
        assert [row["user"] for row in found["users"]["rows"]] == ["ann"]


# -- the audit log -------------------------------------------------------------------------------


async def at_once(function, *arguments):
    """Call a function as a thread does that takes no time: virtual time has no threads."""
    return function(*arguments)


@asynccontextmanager
async def audited(tmp_path):
    log = AuditLog(str(tmp_path / "audit"), 3, lambda: 1_700_000_000_123, in_thread=at_once)
    auditing.sink = log
    try:
        yield log
    finally:
        auditing.sink = None
        await log.close()


def note(log, number, event=AuditEvent.DENIED, **fields):
    log.note(event, ALICE, f"TOPIC:{number}", operation="READ", decision="DENIED", **fields)


async def test_where_the_audit_log_is_off_the_page_shows_the_setting():
    async with started() as site:
        found = await audit(asked(), site)
        assert found["rows"] == []
        assert "--audit-log FILE" in found["off"]
        assert "--audit-log FILE" in drawn("security_audit", found)
        assert "--audit-log FILE" in drawn("security", await security(asked(), site))


async def test_the_newest_lines_come_first_and_pages_stay_while_lines_arrive(tmp_path):
    async with started() as site, audited(tmp_path) as log:
        for number in range(10):
            note(log, number, rule="DefaultDeny")
        first = await audit(asked(4), site)
        note(log, 10)
        second = await audit(asked(4, first["next"]), site)
        third = await audit(asked(4, second["next"]), site)
        found = [*first["rows"], *second["rows"], *third["rows"]]
        assert [row["resource"] for row in found] == [f"TOPIC:{n}" for n in range(9, -1, -1)]
        assert third["next"] is None
        assert first["rows"][0]["text"] == "DefaultDeny"
        assert {row["at_ms"] for row in found} == {1_700_000_000_123}
    written = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    added = ("number", "at_ms", "text")
    kept = [{key: row[key] for key in row if key not in added} for row in found]
    assert kept == written[9::-1]


async def test_lines_of_one_event_are_found_among_others(tmp_path):
    async with started() as site, audited(tmp_path) as log:
        for number in range(6):
            note(log, number)
            note(log, number + 100, AuditEvent.CHANGED, outcome="NONE")
        rows = await all_rows(audit, site, 2, event="changed")
        assert [row["resource"] for row in rows] == [f"TOPIC:{n}" for n in range(105, 99, -1)]
        assert {row["text"] for row in rows} == {""}
        with pytest.raises(Refused):
            await audit(asked(event="nonsense"), site)


def test_kept_lines_have_a_bound_of_lines_and_of_bytes():
    kept = NewestLines()
    for number in range(newest_lines.LINES_MAX + 20):
        kept.add(b"%d" % number)
    found = kept.before(None)
    assert len(found) == len(kept) == newest_lines.LINES_MAX
    assert found[0] == (newest_lines.LINES_MAX + 19, b"%d" % (newest_lines.LINES_MAX + 19))
    assert found[-1].number == 20
    assert [each.number for each in kept.before(22)] == [21, 20]
    assert kept.before(3) == []
    kept.add(bytes(newest_lines.BYTES_MAX // 2))
    kept.add(bytes(newest_lines.BYTES_MAX // 2 + 1))
    assert [each.number for each in kept.before(None)] == [newest_lines.LINES_MAX + 21]


# -- listeners, warnings and rights --------------------------------------------------------------


async def test_listeners_have_the_mechanisms_that_they_offer():
    sasl = SaslConfig(mechanisms=("PLAIN", "SCRAM-SHA-512"))
    async with started(sasl=sasl) as site:
        made = (
            Listener("A", "::1", 1, protocol="SASL_SSL"),
            Listener("B", "127.0.0.1", 2, protocol="SASL_PLAINTEXT"),
            Listener("C", "127.0.0.1", 3),
        )
        site.ctx.listeners = {each.name: each for each in made}
        rows = (await security(asked(), site))["listeners"]
        assert [(row["address"], row["protocol"], row["mechanisms"]) for row in rows] == [
            ("[::1]:1", "SASL_SSL", ["PLAIN", "SCRAM-SHA-512"]),
            ("127.0.0.1:2", "SASL_PLAINTEXT", ["SCRAM-SHA-512"]),
            ("127.0.0.1:3", "PLAINTEXT", None),
        ]
        assert [row["client_certificates"] for row in rows] == ["none", None, None]


async def test_exposed_listeners_gateways_that_differ_and_unreadable_acls_are_warnings():
    async with started(http=HttpConfig(port=1, host="192.0.2.1")) as site:
        ctx = site.ctx
        assert (await security(asked(), site))["warnings"] == [
            "Other machines can reach page=192.0.2.1:1 without TLS and authentication "
            "(--allow-insecure)."
        ]
        ctx.authorizer = Deciding(lambda *_: True)
        ctx.listeners = {"A": Listener("A", "192.0.2.1", 9)}
        others = [member(number)._replace(authorizes=number == 4) for number in (3, 4, 5)]
        ctx.cluster = PaperCluster(3, others)
        await site.store.create("/gateway/acls/torn", b"not a row", parents=True)
        found = await warnings_once_read(site)
        assert [each.split(":")[0] for each in found] == [
            "Gateways differ in their authorizer",
            "An ACL cannot be read, so only super users are served. The log has the reason.",
            "Other machines can reach A=192.0.2.1",
            "Other machines can reach page=192.0.2.1",
        ]
        assert "gateway 3 has an authorizer, 5 has none." in found[0]


async def warnings_once_read(site):
    while not site.ctx.acls.unreadable:
        await asyncio.sleep(0.1)
    return (await security(asked(), site))["warnings"]


async def test_what_the_principal_may_not_see_is_left_out_and_not_read():
    async with started(http=HttpConfig(port=1, host="192.0.2.1")) as site:
        site.ctx.authorizer = Deciding(
            lambda principal, operation, resource: operation is Operation.DESCRIBE
        )
        site.ctx.stored.quotas.stored = None  # reading it would fail
        before = auditing.denials
        found = await security(asked(), site)
        assert (found["listeners"], found["quotas"], found["warnings"]) == (None, None, [])
        assert found["audit"] is None
        left_out = "need DESCRIBE_CONFIGS. Lines of the audit log need ALTER on the cluster, which "
        assert f"{left_out}User:ANONYMOUS may not do." in found["left_out"]
        assert auditing.denials == before
        text = drawn("security", found)
        assert "Listeners, quotas and warnings about listeners need DESCRIBE_CONFIGS" in text
        assert "Listeners of gateway" not in text
        assert "More of the audit log" not in text


@pytest.mark.parametrize(
    ("name", "key"),
    [("security_users", 50), ("security_acls", 29), ("security_quotas", 48)],
)
def test_each_list_needs_the_right_of_the_request_that_returns_the_same(name, key):
    operation, resource = page_named(name).needs({})
    assert RIGHTS[key] == (Right(operation, resource.kind),)


@pytest.mark.parametrize(
    ("name", "operation"), [("security", Operation.DESCRIBE), ("security_audit", Operation.ALTER)]
)
def test_the_audit_log_names_others_so_it_needs_the_right_to_change_them(name, operation):
    assert page_named(name).needs({}) == (operation, CLUSTER)


# -- HTML ----------------------------------------------------------------------------------------


def drawn(name, found, **query):
    """Return the HTML of a page. It has a command, no handler of events and no style."""
    page = page_named(name)
    site = SimpleNamespace(settings=HttpConfig(), token="t")
    request = asked(**query)
    text = Templates(f'{{% include "{name}.html" %}}', site=site).drawn(
        request, page=page, found=found
    )
    assert Tags(text).bad == []
    assert page.command(request) in text.replace("&#34;", '"').replace("&amp;", "&")
    text.encode()
    return text


async def test_hostile_names_are_text(tmp_path):
    async with started() as site, audited(tmp_path) as log:
        await add_users(site, TEXT)
        await add_acl(site, TEXT, f"User:{HOSTILE}")
        await add_quota(site, {"user": TEXT, "client-id": TEXT}, producer_byte_rate=1.0)
        log.note(AuditEvent.LOGIN_FAILED, ALICE, f"USER:{HOSTILE}", reason=HOSTILE)
        whole = drawn("security", await security(asked(), site))
        for view, name in (
            (users, "security_users"),
            (acls, "security_acls"),
            (quotas, "security_quotas"),
            (audit, "security_audit"),
        ):
            text = drawn(name, await view(asked(), site), search=HOSTILE[:30])
            for each in (text, whole):
                assert "<script>%2F" not in each, name
                assert "&lt;script&gt;" in each, name


async def test_a_page_has_links_to_the_rows_that_follow(tmp_path):
    async with started() as site:
        await add_users(site, *(f"app-{number:02}" for number in range(12)))
        whole = drawn("security", await security(asked(), site))
        assert "app-09" in whole and "app-10" not in whole
        assert '<a href="/security/users">All users</a> (12)' in whole
        text = drawn("security_users", await users(asked(5), site))
        assert 'href="?cursor=5" rel="next"' in text


async def test_a_bad_row_of_acls_does_not_break_the_page():
    async with started() as site:
        await add_acl(site, "t")
        path = (await site.store.paths("/gateway/acls"))[0]
        await site.store.set(path, b"damaged", ANY_VERSION)
        assert (await acls(asked(), site))["authorizer"] is True
