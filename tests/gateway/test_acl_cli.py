"""Goal: `gateway acl` lists, adds, removes and explains ACLs, and refuses what means nothing.

Method: the commands in this process, at a gateway in a process of its own whose clients are super
users, and at one whose clients may do nothing.
"""

import json

import pytest

from tests.gateway.admin_commands import invoke
from tests.peers.gateway import Gateway

pytestmark = pytest.mark.process

SUPER = ("--authorizer", "standard", "--super-users", "User:ANONYMOUS;User:ops")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data"), SUPER) as server:
        yield server.bootstrap


@pytest.fixture(autouse=True)
def no_acls(gateway):
    for word in ("topic:*", "topic:orders", "group:g", "cluster"):
        assert invoke("acl", "remove", "--resource", word, "--yes", bootstrap=gateway)[0] == 0


def shown(*words, bootstrap):
    code, out, errors = invoke("acl", *words, "-o", "json", bootstrap=bootstrap)
    assert (code, errors) == (0, "")
    return json.loads(out)


def test_an_acl_is_added_listed_explained_and_removed(gateway):
    code, out, _ = invoke(
        "acl", "add", "User:alice", "read,write", "topic:orders", bootstrap=gateway
    )
    assert (code, out) == (0, "User:alice from * is allowed READ, WRITE on TOPIC:orders.\n")
    rows = shown("list", bootstrap=gateway)
    assert [row["operation"] for row in rows] == ["READ", "WRITE"]
    assert rows[0] == {
        "principal": "User:alice",
        "permission": "ALLOW",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource_name": "orders",
        "pattern_type": "LITERAL",
        "host": "*",
    }
    found = shown("explain", "User:alice", "describe", "topic:orders", bootstrap=gateway)
    assert (found["allowed"], found["rule"]) == (True, "MatchingAcl")
    assert found["acl"] == "ALLOW READ to User:alice from host * on TOPIC:LITERAL:orders"
    code, out, _ = invoke("acl", "remove", "--operation", "read", "--yes", bootstrap=gateway)
    assert code == 0
    assert out == "Removed ALLOW READ on TOPIC:orders (LITERAL) to User:alice from *.\n"
    assert [row["operation"] for row in shown("list", bootstrap=gateway)] == ["WRITE"]


def test_the_rule_that_decides_is_explained(gateway):
    def explained(principal):
        words = ("acl", "explain", principal, "write", "topic:orders", "--host", "10.0.0.1")
        code, out, _ = invoke(*words, bootstrap=gateway)
        assert code == 0
        return out.removeprefix(f"{principal} from 10.0.0.1 ")

    assert explained("User:bob") == "may not WRITE TOPIC:orders: no ACL allows it.\n"
    assert explained("User:ops") == "may WRITE TOPIC:orders: it is a super user.\n"
    words = ("acl", "add", "User:*", "all", "topic:ord", "--prefix", "--deny")
    assert invoke(*words, bootstrap=gateway)[0] == 0
    deny = "DENY ALL to User:* from host * on TOPIC:PREFIXED:ord"
    assert explained("User:bob") == f"may not WRITE TOPIC:orders: {deny}.\n"
    assert invoke("acl", "remove", "--deny", "--yes", bootstrap=gateway)[0] == 0


def test_acls_are_listed_by_what_they_match(gateway):
    for word in ("topic:orders", "topic:*", "group:g", "cluster"):
        assert invoke("acl", "add", "User:a", "describe", word, bootstrap=gateway)[0] == 0
    found = shown("list", "--resource", "topic:orders", "--match", bootstrap=gateway)
    assert [row["resource_name"] for row in found] == ["*", "orders"]
    assert [row["resource_type"] for row in shown("list", bootstrap=gateway)] == [
        "CLUSTER",
        "GROUP",
        "TOPIC",
        "TOPIC",
    ]
    assert shown("list", "--principal", "User:b", bootstrap=gateway) == []


def test_removing_asks_first_and_nothing_is_removed_without_an_option(gateway):
    assert invoke("acl", "add", "User:a", "read", "group:g", bootstrap=gateway)[0] == 0
    code, _, errors = invoke("acl", "remove", "--resource", "group:g", bootstrap=gateway)
    assert (code, errors.count("\n")) == (2, 1)
    assert "removes 1 ACLs; add --yes to do it" in errors
    code, _, errors = invoke("acl", "remove", "--yes", bootstrap=gateway)
    assert (code, errors.count("\n")) == (2, 1)
    assert len(shown("list", bootstrap=gateway)) == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("add", "alice", "read", "topic:t"), "must be a type and a name"),
        (("add", "User:a", "reed", "topic:t"), "must be one of all, read, write"),
        (("add", "User:a", "read", "topics:t"), "must be cluster, or one of topic:NAME"),
        (("add", "User:a", "read", "topic:"), "must be cluster, or one of topic:NAME"),
        (("add", "User:a", "read", "cluster:other"), "must be cluster, or one of"),
        (("add", "User:a", "read", "cluster"), "OPERATIONS read: must be all, create, alter"),
        (("add", "User:a", "all,write", "group:g"), "for group"),
        (("add", "User:a", "read", "topic:*", "--prefix"), "every one without --prefix"),
        (("add", "User:a", "read", "topic:t", "--host", "example.com"), "must be an IP address"),
        (("add", "User:a", "read", "topic:t", "--host", "10.0.0.0/8"), "must be an IP address"),
        (("list", "--match"), "--match needs --resource"),
        (("explain", "User:a", "all", "topic:t"), "name one operation"),
    ],
)
def test_what_means_nothing_is_a_usage_error(words, text):
    code, out, errors = invoke("acl", *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert text in errors


def test_without_an_authorizer_the_commands_say_so(tmp_path):
    with Gateway(tmp_path / "data") as server:
        for words in (("list",), ("explain", "User:a", "read", "topic:t")):
            code, _, errors = invoke("acl", *words, bootstrap=server.bootstrap)
            assert (code, errors.count("\n")) == (1, 1)
            assert "authorizer is configured" in errors.lower()


def test_a_client_without_rights_gets_exit_code_77(tmp_path):
    with Gateway(tmp_path / "data", ("--authorizer", "standard")) as server:
        for words in (
            ("acl", "list"),
            ("acl", "add", "User:a", "read", "topic:t"),
            ("acl", "explain", "User:a", "read", "topic:t"),
            ("events",),
        ):
            code, _, errors = invoke(*words, bootstrap=server.bootstrap)
            assert (code, errors.count("\n")) == (77, 1), errors
