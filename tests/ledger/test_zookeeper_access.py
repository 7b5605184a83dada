"""Goal: nodes of a cluster with an identity are its alone, and its reader sees no secret.

Method: a real ZooKeeper that applies ACLs, stores with several identities, and kazoo's own client
as the world outside.
"""

import logging

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from ledger.adapters.zookeeper import zookeeper_acls
from ledger.adapters.zookeeper.zookeeper_access import Identity, ZooKeeperAccess, read_access
from ledger.adapters.zookeeper.zookeeper_metadata import connect_zookeeper
from ledger.command_line.secret_values import SecretFault
from ledger.command_line.zookeeper_settings import SetAcl, ZooKeeperSecurity
from ledger.errors import AccessDenied, OpenToAnyone
from ledger.ports.metadata import Create, Delete, Set
from tests.ledger.zookeeper_rig import Told
from tests.peers.processes import until
from tests.peers.zookeeper import ZooKeeper

pytestmark = [pytest.mark.real_loop, pytest.mark.zookeeper]

CLUSTER = Identity("cluster", "marked-secret-of-cluster")
READER = Identity("reader", "marked-secret-of-reader")
SECRET = "/gateway/scram"


def access(identity=CLUSTER, set_acl=SetAcl.REQUIRED, **fields):
    return ZooKeeperAccess(
        identity, reader=READER, set_acl=set_acl, secret_paths=(SECRET,), **fields
    )


READS = ZooKeeperAccess(READER)


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    """A ZooKeeper that applies ACLs."""
    data = tmp_path_factory.mktemp("closed") / "data"
    with ZooKeeper(data, applies_acls=True) as started:
        yield started


@pytest.fixture
def world(closed):
    """A client without an identity."""
    client = KazooClient(closed.servers)
    client.start(60)
    yield client
    client.stop()
    client.close()


class Stores:
    """Stores on one root, closed at the end of a test."""

    def __init__(self, servers, root):
        self._servers, self.root = servers, root
        self._opened = []

    async def open(self, access=None, **settings):
        more = {} if access is None else {"access": access}
        store = await connect_zookeeper(self._servers, chroot=self.root, **more, **settings)
        self._opened.append(store)
        return store

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        for each in self._opened:
            await each.close()


@pytest.fixture
def stores(closed):
    return Stores(closed.servers, closed.unused_chroot())


async def test_every_way_to_create_a_node_closes_it(stores, world):
    async with stores:
        store = await stores.open(access())
        await store.create("/a/b/c", b"1", parents=True)
        await store.create("/a/ephemeral", ephemeral=True)
        await store.create("/a/number-", sequential=True)
        await store.multi([Create("/m", b"2"), Create("/m/n")])
        report = await store.acls.check()
        assert report.nodes == 8
        assert report.left == 0
        for path in ("", "/a/b/c", "/m/n"):
            with pytest.raises(NoAuthError):
                world.get(stores.root + path)


async def test_the_reader_reads_and_changes_nothing_and_sees_no_secret(stores):
    async with stores:
        store = await stores.open(access())
        await store.create(f"{SECRET}/alice", b"keys", parents=True)
        await store.create("/ledgers", b"open to readers")
        reader = await stores.open(READS, make_root=False)
        assert (await reader.get("/ledgers")).data == b"open to readers"
        assert await reader.children("/gateway") == ["scram"]
        for refused in (
            reader.get(f"{SECRET}/alice"),
            reader.get(SECRET),
            reader.children(SECRET),
            reader.read_tree("/gateway"),
            reader.set("/ledgers", b"mine", 0),
            reader.create("/mine"),
            reader.delete("/ledgers"),
            reader.multi([Set("/ledgers", b"mine", 0), Delete("/ledgers")]),
        ):
            with pytest.raises(AccessDenied, match="set zookeeper-auth"):
                await refused
        assert (await store.get("/ledgers")).data == b"open to readers"


async def test_a_process_without_the_identity_or_with_a_wrong_password_is_refused(stores):
    async with stores:
        store = await stores.open(access())
        await store.create("/a")
        for other in (None, ZooKeeperAccess(Identity("cluster", "wrong"))):
            stranger = await stores.open(other, make_root=False)
            with pytest.raises(AccessDenied):
                await stranger.get("/a")


async def test_the_identity_holds_on_every_later_connection(stores, closed):
    async with stores:
        store = await stores.open(access())
        await store.create("/a", b"1")
        told = Told()
        store.watch("/a", told)
        await store.get("/a")
        closed.kill()
        closed.start()
        assert (await store.get("/a")).data == b"1"
        await store.set("/a", b"2", 0)
        await told.times(1)
        assert store.negotiated_session_ms == 10_000


@pytest.mark.parametrize("path", ["", "/a/b"])
async def test_an_open_node_refuses_a_start_and_names_the_fix(stores, world, path):
    async with stores:
        store = await stores.open(access())
        await store.create("/a/b", parents=True)
        await _open(stores, path)
        with pytest.raises(OpenToAnyone, match=r"is open to world:anyone; run `gateway security"):
            await stores.open(access())
        await stores.open(access(set_acl=SetAcl.MIGRATE))


async def test_nodes_beyond_the_first_are_checked_while_the_process_serves(
    stores, monkeypatch, caplog
):
    monkeypatch.setattr(zookeeper_acls, "_AT_START", 2)
    monkeypatch.setattr(zookeeper_acls, "_NODES_AT_ONCE", 2)
    async with stores:
        store = await stores.open(access())
        for each in range(5):
            await store.create(f"/n{each}/below", parents=True)
        await _open(stores, "/n4/below")
        started = await stores.open(access())
        await until(lambda: "/n4/below is open to world:anyone" in caplog.text, "an error")
        assert await started.children("/n0") == ["below"]


async def _open(stores, path):
    """Make a node open, as the cluster's identity alone can."""
    client = KazooClient(stores._servers, auth_data=[("digest", _text(CLUSTER))])
    client.start(60)
    client.set_acls(stores.root + path, OPEN_ACL_UNSAFE)
    client.stop()
    client.close()


def _text(identity):
    return f"{identity.name}:{identity.password}"


async def test_the_modes_create_closed_and_open_nodes(stores, world):
    async with stores:
        await stores.open(access(set_acl=SetAcl.OFF))
        assert world.get_acls(stores.root)[0] == OPEN_ACL_UNSAFE
        migrating = await stores.open(access(set_acl=SetAcl.MIGRATE))
        await migrating.create("/closed")
        with pytest.raises(NoAuthError):
            world.get(f"{stores.root}/closed")
        off = await stores.open(access(set_acl=SetAcl.OFF))
        await off.create("/open")
        assert world.get(f"{stores.root}/open")[0] == b""


async def test_a_repair_closes_a_tree_and_may_be_repeated(stores, world):
    async with stores:
        store = await stores.open()
        await store.create("/gateway/scram/alice", b"keys", parents=True)
        for each in range(300):
            await store.create(f"/t/{each}", parents=True)
        closing = await stores.open(access(set_acl=SetAcl.MIGRATE))
        before = await closing.acls.check()
        assert (before.nodes, before.open, before.left) == (305, 305, 305)
        assert len(before.open_paths) == 100
        parts = []
        done = await closing.acls.apply(lambda report: parts.append(report.nodes))
        assert (done.nodes, done.changed, done.left) == (305, 305, 0)
        assert parts == sorted(parts)
        again = await closing.acls.apply()
        assert (again.nodes, again.changed, again.left) == (305, 0, 0)
        with pytest.raises(NoAuthError):
            world.get_children(stores.root)
        reader = await stores.open(READS, make_root=False)
        assert len(await reader.children("/t")) == 300
        with pytest.raises(AccessDenied):
            await reader.get("/gateway/scram/alice")


async def test_a_repair_adds_a_reader_and_reports_nodes_of_others(stores):
    async with stores:
        alone = ZooKeeperAccess(CLUSTER, set_acl=SetAcl.REQUIRED)
        store = await stores.open(alone)
        await store.create("/a")
        foreign = await stores.open(
            ZooKeeperAccess(Identity("other", "x"), set_acl=SetAcl.MIGRATE), make_root=False
        )
        with pytest.raises(AccessDenied):
            await foreign.create("/b")
        report = await (await stores.open(access())).acls.check()
        assert (report.open, report.other, report.left) == (0, 2, 2)
        report = await foreign.acls.apply()
        assert (report.refused, report.left) == (1, 1)
        assert report.refused_paths == [stores.root]
        report = await (await stores.open(access())).acls.apply()
        assert (report.changed, report.left) == (2, 0)


async def test_no_secret_is_logged_or_shown(stores, caplog):
    caplog.set_level(0)
    logging.getLogger("ledger.zookeeper").setLevel(1)
    try:
        async with stores:
            store = await stores.open(access())
            await store.create("/a")
    finally:
        logging.getLogger("ledger.zookeeper").setLevel(logging.NOTSET)
    assert "Auth(hidden)" in caplog.text
    shown = caplog.text + repr(access()) + str(CLUSTER) + repr(CLUSTER.request)
    assert "marked-secret" not in shown


async def test_a_password_is_changed_by_identities_that_are_proved_together(stores):
    new = Identity("cluster", "new")
    async with stores:
        old_alone = await stores.open(access())
        await old_alone.create("/a")
        both = await stores.open(access(new, SetAcl.MIGRATE, others=(CLUSTER,)))
        await both.create("/b")
        with pytest.raises(AccessDenied):
            await old_alone.get("/b")
        assert (await both.acls.apply()).left == 0
        new_alone = await stores.open(access(new))
        assert await new_alone.children("/") == ["a", "b"]
        with pytest.raises(AccessDenied):
            await old_alone.get("/a")


@pytest.mark.parametrize("secret", ["nocolon", ":x", "x:", "a:b\nc", "a:1\n" * 5, "a:b\n\n"])
def test_a_secret_that_is_no_identity_is_refused_without_showing_it(secret, monkeypatch):
    monkeypatch.setenv("IDENTITY", secret)
    with pytest.raises(SecretFault, match=r"^env:IDENTITY: must be") as fault:
        read_access(ZooKeeperSecurity(auth="env:IDENTITY"))
    assert secret not in str(fault.value)


def test_the_settings_make_the_access(monkeypatch):
    monkeypatch.setenv("IDENTITIES", "cluster:a\ncluster:b\n")
    assert [each.password for each in read_access(ZooKeeperSecurity("env:IDENTITIES")).proved] == [
        *("a", "b")
    ]
    with pytest.raises(SecretFault, match=r"must be NAME:PASSWORD in one line$"):
        read_access(ZooKeeperSecurity("env:IDENTITIES", "env:IDENTITIES"))
    monkeypatch.setenv("IDENTITY", "cluster:a:b")
    made = read_access(ZooKeeperSecurity(auth="env:IDENTITY", read_auth="env:IDENTITY"))
    assert made.identity == made.reader == Identity("cluster", "a:b")
    assert made.checks_nodes
    assert read_access(ZooKeeperSecurity()) == ZooKeeperAccess()
