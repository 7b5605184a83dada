"""Goal: the audit log has a line for each denial, failed login and change, and stops nothing.

Method: the log on virtual time with a file; a full disk is /dev/full. Denials and changes are made
by real requests, logins by a port with SASL.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from gateway.access import AuditEvent, Operation, PageClient, Resource, ResourceType, auditing
from gateway.config import Authorization
from gateway.handlers import k03_metadata, k19_create_topics, k49_alter_client_quotas
from gateway.handlers.rights import RIGHTS, TRIED, Right
from gateway.http.asking import require
from gateway.http.pages import Refused
from gateway.security import audit_log
from gateway.security.audit_log import AuditLog
from gateway.settings.stored_acls import StoredAcls
from ledger.tasks import in_thread
from tests.gateway.handler_cluster import loaded_cluster
from tests.gateway.secure_rig import Client, secure_port
from tests.gateway.test_client_throttles import creation

ALICE = PageClient("User:alice", "10.0.0.7", 5, "OUT", "SCRAM-SHA-256")


async def at_once(function, *arguments):
    """Call a function as a thread does that takes no time: virtual time has no threads."""
    return function(*arguments)


@asynccontextmanager
async def logging_to(target, **options):
    """Log to a file while this lasts, and write all of it then."""
    options = {"in_thread": at_once, **options}
    auditing.sink = log = AuditLog(str(target), 3, lambda: 1_700_000_000_123, **options)
    try:
        yield log
    finally:
        auditing.sink = None
        await log.close()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def note(log, resource="TOPIC:t", by=ALICE, **fields):
    log.note(AuditEvent.DENIED, by, resource, operation="READ", **fields)


async def test_a_line_has_the_time_the_client_and_the_fields(tmp_path):
    async with logging_to(tmp_path / "audit") as log:
        note(log, request_key=1)
    assert lines(tmp_path / "audit") == [
        {
            "time": "2023-11-14T22:13:20.123Z",
            "node_id": 3,
            "event": "denied",
            "principal": "User:alice",
            "mechanism": "SCRAM-SHA-256",
            "address": "10.0.0.7",
            "port": 5,
            "listener": "OUT",
            "resource": "TOPIC:t",
            "operation": "READ",
            "request_key": 1,
        }
    ]
    assert os.stat(tmp_path / "audit").st_mode & 0o777 == 0o600


async def test_many_lines_of_a_principal_about_a_resource_are_counted_instead(tmp_path):
    async with logging_to(tmp_path / "audit") as log:
        for _ in range(25):
            note(log)
        note(log, "TOPIC:other")
        await asyncio.sleep(11)
        note(log)
        for _ in range(30):
            note(log)
        await asyncio.sleep(30)
        assert log._timer is None
    found = lines(tmp_path / "audit")
    of_t = [line for line in found if line["resource"] == "TOPIC:t"]
    assert [line.get("left_out") for line in of_t] == [None] * 10 + [15] + [None] * 10 + [21]
    assert [line["event"] for line in of_t if "left_out" in line] == ["left-out"] * 2
    assert len(found) == len(of_t) + 1


async def test_denials_hide_no_change_of_the_same_resource(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_log, "_KINDS_MAX", 3)
    async with logging_to(tmp_path / "audit") as log:
        for number in range(200):
            note(log, f"TOPIC:{number % 20}", decision="DENIED")
        for name in ("TOPIC:1", "TOPIC:19"):
            change = {"operation": "DELETE", "decision": "ALLOWED"}
            log.note(AuditEvent.CHANGED, ALICE, name, **change)
    changed = [each for each in lines(tmp_path / "audit") if each["event"] == "changed"]
    assert [each["resource"] for each in changed] == ["TOPIC:1", "TOPIC:19"]


async def test_very_many_pairs_share_one_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_log, "_KINDS_MAX", 5)
    async with logging_to(tmp_path / "audit") as log:
        for number in range(100):
            note(log, f"TOPIC:{number}")
        assert len(log._windows) == 6
    found = lines(tmp_path / "audit")
    assert len(found) == 5 + 10 + 1
    assert (found[-1]["resource"], found[-1]["left_out"]) == ("*", 85)


async def test_a_full_queue_loses_lines_and_counts_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(audit_log, "LINES_MAX", 4)
    async with logging_to(tmp_path / "audit") as log:
        for number in range(10):
            note(log, f"TOPIC:{number}")
    assert log.counts() == {"written": 4, "queue-full": 6}
    assert "lines of the audit log are lost" in capsys.readouterr().err


async def test_the_bytes_that_wait_have_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_log, "BYTES_MAX", 10_000)
    async with logging_to(tmp_path / "audit") as log:
        for number in range(20):
            note(log, f"TOPIC:{number}", reason="\0" * 5_000)
        assert log._queued_bytes < 13_000
        await asyncio.sleep(1)
        note(log, "TOPIC:later")
    assert log._queued_bytes == 0
    assert log.counts() == {"written": 6, "queue-full": 15}


async def test_a_full_disk_is_a_line_of_the_log_and_not_a_stop(capsys):
    async with logging_to("/dev/full") as log:
        for number in range(3):
            note(log, f"TOPIC:{number}")
            await asyncio.sleep(1)
    assert log.counts()["not-written"] == 3
    assert capsys.readouterr().err.count("lines of the audit log are lost") == 1


async def test_a_line_after_a_torn_one_begins_a_new_line(tmp_path):
    path = tmp_path / "audit"
    async with logging_to(path) as log:
        path.write_bytes(b'{"half')
        log._torn = True
        note(log)
    assert json.loads(path.read_text().split("\n")[1])["event"] == "denied"


async def test_a_file_that_was_moved_away_is_begun_again(tmp_path):
    path = tmp_path / "audit"
    async with logging_to(path) as log:
        note(log)
        while log._writing:
            await asyncio.sleep(0.1)
        path.rename(tmp_path / "old")
        note(log, "TOPIC:later")
    assert [line["resource"] for line in lines(path)] == ["TOPIC:later"]


async def test_long_texts_are_cut(tmp_path):
    async with logging_to(tmp_path / "audit") as log:
        note(log, "TOPIC:" + "x" * 5_000, client_id="y" * 5_000)
    (found,) = lines(tmp_path / "audit")
    assert (len(found["resource"]), len(found["client_id"])) == (300, 300)


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    async def open_it():
        AuditLog(str(tmp_path / "no" / "such"), 0, int)

    with pytest.raises(FileNotFoundError):
        asyncio.run(open_it())


def test_a_pipe_that_nobody_reads_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    async def open_it():
        AuditLog(str(tmp_path / "pipe"), 0, int)

    with pytest.raises(OSError, match="No such device"):
        asyncio.run(open_it())


# -- what makes lines -------------------------------------------------------------------------


@asynccontextmanager
async def with_acls(**authorization):
    async with loaded_cluster() as cluster:
        ctx = cluster.context
        ctx.acls = ctx.authorizer = StoredAcls(
            cluster.store, Authorization(authorizer="standard", **authorization)
        )
        await ctx.acls.load()
        yield cluster
        await ctx.acls.close()


async def test_a_denial_has_the_rule_and_rights_that_are_only_tried_have_no_line(tmp_path):
    async with with_acls() as cluster, logging_to(tmp_path / "audit"):
        denials = auditing.denials
        reply = await cluster.ask(k19_create_topics, 7, **creation("t", 1))
        assert reply.topics[0].error_code is ErrorCode.topic_authorization_failed
        await cluster.ask(
            k03_metadata,
            12,
            topics=None,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        assert auditing.denials == denials + 1
    (found,) = lines(tmp_path / "audit")
    assert (found["resource"], found["operation"]) == ("TOPIC:t", "CREATE")
    assert (found["decision"], found["rule"]) == ("DENIED", "DefaultDeny")
    assert (found["request_key"], found["request_version"]) == (19, 7)
    assert found["principal"] == "User:ANONYMOUS"


def test_rights_that_are_only_tried_are_rights_of_their_request():
    for key, operation, kind in TRIED:
        assert Right(operation, kind) in RIGHTS[key]


async def test_changes_have_their_outcome_and_no_value(tmp_path):
    async with loaded_cluster() as cluster, logging_to(tmp_path / "audit"):
        await cluster.ask(k19_create_topics, 7, **creation("t", 1))
        await cluster.ask(k19_create_topics, 7, **creation("t", 1))
        await cluster.ask(k19_create_topics, 7, **creation("v", 1, validate_only=True))
        entry = {
            "entity": [{"entity_type": "user", "entity_name": "alice"}],
            "ops": [{"key": "producer_byte_rate", "value": 7.0, "remove": False}],
        }
        await cluster.ask(k49_alter_client_quotas, 1, entries=[entry], validate_only=False)
    found = [
        (line["event"], line["operation"], line["resource"], line["outcome"])
        for line in lines(tmp_path / "audit")
    ]
    assert found == [
        ("changed", "CREATE", "TOPIC:t", "NONE"),
        ("changed", "CREATE", "TOPIC:t", "TOPIC_ALREADY_EXISTS"),
        ("changed", "ALTER", "QUOTA:user=alice", "NONE"),
    ]


async def test_the_page_notes_what_it_refuses(tmp_path):
    class Nothing:
        def allows(self, *_):
            return False

    site = SimpleNamespace(ctx=SimpleNamespace(authorizer=Nothing()))
    async with logging_to(tmp_path / "audit"):
        with pytest.raises(Refused):
            require(site, "User:eve", "::1", Operation.READ, Resource(ResourceType.TOPIC, "t"))
    (found,) = lines(tmp_path / "audit")
    assert (found["principal"], found["listener"], found["resource"]) == (
        "User:eve",
        "HTTP",
        "TOPIC:t",
    )


@pytest.mark.real_loop
async def test_a_failed_login_has_its_user_and_no_password(tmp_path):
    async with logging_to(tmp_path / "audit", in_thread=in_thread) as log:
        async with secure_port(protocols=("SASL_PLAINTEXT",)) as port:
            client = await Client.connect(port.at("SASL_PLAINTEXT"))
            await client.handshake("SCRAM-SHA-256")
            token = b"n,,n=mallory,r=nonce"
            await client.token(token)
            await client.token(b"c=biws,r=wrong,p=bWFya2VkLXNlY3JldA==")
            counts = dict(port.registry.logins)
        await log.close()
    assert counts == {("SCRAM-SHA-256", "failed"): 1}
    (found,) = lines(tmp_path / "audit")
    assert (found["event"], found["resource"]) == ("login-failed", "USER:mallory")
    assert found["tried_mechanism"] == "SCRAM-SHA-256"
    assert "bWFya2Vk" not in (tmp_path / "audit").read_text()
