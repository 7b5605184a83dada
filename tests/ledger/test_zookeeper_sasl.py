"""Goal: a process proves its identity by SASL (DIGEST-MD5), and its nodes are for users of SASL.

Method: a real ZooKeeper with two users that applies ACLs, and our stores; the example of the RFC.
"""

import logging

import pytest
from kazoo.security import ACL, Id, Permissions

from ledger.adapters.zookeeper.digest_md5 import DigestFailed, DigestMd5
from ledger.adapters.zookeeper.zookeeper_access import Identity, ZooKeeperAccess, read_access
from ledger.command_line.zookeeper_settings import SetAcl, security_of_keys
from ledger.errors import AccessDenied
from tests.ledger.test_zookeeper_access import Stores
from tests.ledger.zookeeper_rig import refused
from tests.peers.zookeeper import ZooKeeper

pytestmark = [pytest.mark.real_loop, pytest.mark.zookeeper]

USERS = {"cluster": "marked-secret-of-cluster", "reader": "marked-secret-of-reader"}
CLUSTER, READER = (Identity(*each) for each in USERS.items())
SECRET = "/gateway/scram"
OLD = Identity("old", "password")


def access(identity=CLUSTER, set_acl=SetAcl.REQUIRED, **fields):
    more = {"sasl": True, "secret_paths": (SECRET,), "reader": READER, **fields}
    return ZooKeeperAccess(identity, set_acl=set_acl, **more)


READS = ZooKeeperAccess(READER, sasl=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    data = tmp_path_factory.mktemp("sasl") / "data"
    with ZooKeeper(data, applies_acls=True, sasl_users=USERS) as started:
        yield started


@pytest.fixture
def stores(server):
    return Stores(server.servers, server.unused_chroot())


async def test_nodes_are_for_the_users_of_sasl_alone(stores):
    async with stores:
        store = await stores.open(access())
        await store.create("/a", b"1")
        await store.create(f"{SECRET}/alice", b"keys", parents=True)
        reader = await stores.open(READS, make_root=False)
        assert (await reader.get("/a")).data == b"1"
        for refused in (reader.get(f"{SECRET}/alice"), reader.set("/a", b"2", 0)):
            with pytest.raises(AccessDenied):
                await refused
        stranger = await stores.open(make_root=False)
        with pytest.raises(AccessDenied):
            await stranger.get("/a")
        ours = ACL(Permissions.ALL, Id("sasl", "cluster"))
        closed = [ours, ACL(Permissions.READ, Id("sasl", "reader"))]
        assert list(access().closed_acl("/a")) == closed
        report = await store.acls.check()
        assert (report.nodes, report.left) == (5, 0)


async def test_a_wrong_password_gets_no_connection(stores):
    async with stores:
        wrong = access(Identity("cluster", "wrong"))
        await refused("refused the user cluster of SASL", stores._servers, access=wrong)


async def test_the_user_holds_on_every_later_connection(stores, server):
    async with stores:
        store = await stores.open(access())
        await store.create("/a", b"1")
        server.kill()
        server.start()
        assert (await store.get("/a")).data == b"1"
        await store.set("/a", b"2", 0)


async def test_a_tree_of_the_digest_scheme_is_repaired_by_both(stores):
    """Further lines of the secret are proved by the digest scheme, so that a cluster can change."""
    async with stores:
        before = await stores.open(ZooKeeperAccess(OLD, set_acl=SetAcl.REQUIRED))
        await before.create("/a")
        both = await stores.open(access(set_acl=SetAcl.MIGRATE, others=(OLD,)))
        await both.create("/b", b"1")
        assert (await before.get("/b")).data == b"1"  # it has not been started again yet
        await before.set("/b", b"2", 0)
        assert (await both.acls.apply()).left == 0
        assert (await before.get("/a")).data == b""
        alone = await stores.open(access(set_acl=SetAcl.MIGRATE))
        assert await alone.children("/") == ["a", "b"]
        assert (await alone.acls.apply()).left == 0
        for path in ("/a", "/b"):
            with pytest.raises(AccessDenied):
                await before.get(path)


async def test_no_proof_is_logged(stores, caplog):
    caplog.set_level(0)
    logging.getLogger("ledger.zookeeper").setLevel(1)
    try:
        async with stores:
            await (await stores.open(access())).create("/a")
    finally:
        logging.getLogger("ledger.zookeeper").setLevel(logging.NOTSET)
    assert "SASL(hidden)" in caplog.text
    assert "marked-secret" not in caplog.text
    assert "response=" not in caplog.text


def test_the_settings_make_the_access(monkeypatch):
    monkeypatch.setenv("IDENTITY", "cluster:password\nold:password\n")
    keys = {"zookeeper.auth": "env:IDENTITY", "zookeeper.sasl.mechanism": "DIGEST-MD5"}
    found = read_access(security_of_keys(keys))
    assert (found.user, found.proved) == (Identity("cluster", "password"), (OLD,))
    with pytest.raises(ValueError, match=r"zookeeper\.sasl\.mechanism: .*DIGEST-MD5"):
        security_of_keys({**keys, "zookeeper.sasl.mechanism": "GSSAPI"})
    with pytest.raises(ValueError, match=r"needs zookeeper\.auth too"):
        security_of_keys({"zookeeper.sasl.mechanism": "DIGEST-MD5"})


def test_the_example_of_the_rfc():
    """RFC 2831, section 4."""
    side = DigestMd5("chris", "secret", "OA6MHXh6VqTrRk", "imap/elwood.innosoft.com")
    said = side.response(
        b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",'
        b"algorithm=md5-sess,charset=utf-8"
    )
    assert b"response=d388dad90d4bbd760a152321f2143af7" in said
    side.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffd")
    with pytest.raises(DigestFailed):
        side.check(b"rspauth=ea40f60335c427b5527b84dbabcdfffe")


@pytest.mark.parametrize(
    "challenge",
    [b"", b"\xff", b'nonce=""', b'nonce="n"', b'nonce="n",algorithm=md5-sess,qop="auth-conf"'],
)
def test_a_server_that_offers_something_else_is_refused(challenge):
    side = DigestMd5("cluster", "password", "text")
    with pytest.raises(DigestFailed, match="the server"):
        side.response(challenge)
    with pytest.raises(DigestFailed):
        side.check(b"rspauth=")


def test_a_name_with_quotes_is_escaped():
    said = DigestMd5('a"\\b', "password", "text").response(b'nonce="n",algorithm=md5-sess')
    assert rb'username="a\"\\b"' in said
