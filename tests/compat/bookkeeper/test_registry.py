"""Goal: Apache BookKeeper and this ledger tier share a cluster's registry: its layout, bookies,
cookies, marks of lost copies, locks and the auditor's election.

Method: Apache BookKeeper 4.17's own classes, in Java, on the same ZooKeeper; what one side writes
the other reads or obeys.
"""

import pytest

from ledger.ports.bookies import DEFAULT_RACK, BookieInfo
from ledger.registry import cookie
from ledger.registry import underreplication_format as underreplication
from ledger.registry.cookie import Cookie, cookie_path
from ledger.registry.discovery import Discovery
from ledger.registry.layout import init_layout, read_instance_id
from ledger.registry.registration import Registration
from tests.compat.bookkeeper.java import JavaError

FACTORY = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"


def laid_out(cluster):
    return cluster.run(lambda store: init_layout(store, lambda: "our-instance"))


def test_java_opens_the_cluster_that_we_laid_out(cluster):
    laid_out(cluster)
    assert cluster.ask("cluster.factory") == FACTORY
    assert cluster.ask("cluster.instance") == "our-instance"
    assert cluster.ask("cluster.init") is False  # it is there already


def test_we_open_the_cluster_that_java_laid_out(cluster):
    assert cluster.ask("cluster.init") is True

    async def read(store):
        before = await store.read_tree("/ledgers")
        instance = await init_layout(store, lambda: "unused")
        assert await store.read_tree("/ledgers") == before
        assert instance == await read_instance_id(store)
        return instance

    assert cluster.run(read) == cluster.ask("cluster.instance")


COOKIES = {
    "plain": Cookie("b1", "/data/journal", ("/data/1",), "an-instance"),
    "many": Cookie("b1", "/j1,/j2", ("/data/1", "/data/2"), "an-instance", ("/i1", "/i2")),
    "odd": Cookie("b1", '/jour"nal\\', ("/dätä", "/d 2"), "an-instance", ("/i",)),
    "no instance": Cookie("b1", "/j", ("/d",), ""),
}


def fields(value):
    names = ("bookie_host", "journal_dir", "ledger_dirs", "instance_id", "index_dirs")
    return {name: getattr(value, name) for name in names}


@pytest.mark.parametrize("name", COOKIES)
def test_java_finds_our_cookie_equal_to_its_own(cluster, name):
    laid_out(cluster)
    value = COOKIES[name]
    stored = cookie.encode(value)
    cluster.run(lambda store: store.create(cookie_path("b1"), stored, parents=True))
    assert cluster.ask("cookie.verify", **fields(value)) == 0
    assert cluster.ask("cookie.parse", hex=stored.hex()).encode() == stored
    assert cluster.ask("bookie.all") == ["b1"]


@pytest.mark.parametrize("name", ["journal_dir", "instance_id", "ledger_dirs"])
def test_java_refuses_our_cookie_where_a_field_differs(cluster, name):
    laid_out(cluster)
    stored = cookie.encode(COOKIES["many"])
    cluster.run(lambda store: store.create(cookie_path("b1"), stored, parents=True))
    other = ["/elsewhere"] if name == "ledger_dirs" else "elsewhere"
    with pytest.raises(JavaError, match="InvalidCookie"):
        cluster.ask("cookie.verify", **fields(COOKIES["many"]) | {name: other})


@pytest.mark.parametrize("name", COOKIES)
def test_we_read_the_cookie_that_java_wrote(cluster, name):
    laid_out(cluster)
    value = COOKIES[name]
    cluster.ask("cookie.write", **fields(value))
    node = cluster.run(lambda store: store.get(cookie_path("b1")))
    assert cookie.decode(node.data) == value
    assert node.data == cookie.encode(value)


def test_both_sides_read_the_cookies_of_old_bookies(cluster):
    laid_out(cluster)
    old, stored = Cookie("b1", "/j", ("/d1", "/d2"), ""), b"3\nb1\n/j\n2\t/d1\t/d2\n"
    cluster.run(lambda store: store.create(cookie_path("b1"), stored, parents=True))
    assert cluster.ask("cookie.verify", **fields(old), layout=3) == 0
    assert cookie.decode(stored) == old


def test_java_lists_our_bookies_and_knows_where_they_are_and_in_which_rack(cluster):
    laid_out(cluster)
    infos = {
        "b1-0a1b2c3d": BookieInfo("10.0.0.1", 3181, "/dc-1/rack-ü"),
        "b2": BookieInfo("host.example", 65535),
        "b3": BookieInfo("10.0.0.3", 3181, read_only=True),
    }

    async def registered(store):
        bookies = [Registration(store, bookie, info) for bookie, info in infos.items()]
        for one in bookies:
            await one.start()
        asked = [cluster.ask(f"bookie.{which}") for which in ("writable", "readonly")]
        known = {bookie: cluster.ask("bookie.info", bookie=bookie) for bookie in infos}
        for one in bookies:
            await one.stop()
        return *asked, known

    writable, readonly, known = cluster.run(registered)
    assert writable == ["b1-0a1b2c3d", "b2"]
    assert readonly == ["b3"]
    for bookie, info in infos.items():
        endpoint = {"id": bookie, "host": info.host, "port": info.port, "protocol": "bookie-grpc"}
        assert known[bookie] == {
            "properties": {"rack": info.rack},
            "endpoints": [endpoint | {"auth": [], "extensions": []}],
        }
    assert not cluster.ask("bookie.registered", bookie="b1-0a1b2c3d")


def test_java_sees_our_bookie_turn_read_only_and_back(cluster):
    laid_out(cluster)

    async def turned(store):
        bookie = Registration(store, "b1", BookieInfo("10.0.0.1", 3181))
        await bookie.start()
        await bookie.set_read_only(True)
        lists = [cluster.ask(f"bookie.{which}") for which in ("writable", "readonly")]
        await bookie.set_read_only(False)
        lists += [cluster.ask(f"bookie.{which}") for which in ("writable", "readonly")]
        await bookie.stop()
        return lists

    assert cluster.run(turned) == [[], ["b1"], ["b1"], []]


def test_we_see_the_bookies_that_java_registered(cluster):
    cluster.ask("cluster.init")
    rpc = {"id": "bookie", "host": "10.0.0.1", "port": 3181, "protocol": "bookie-rpc"}
    http = {"id": "httpserver", "host": "10.0.0.1", "port": 8080, "protocol": "http"}
    more = {"auth": ["a"], "extensions": ["x", "y"]}
    info = {"endpoints": [http | more, rpc | more], "properties": {"rack": "/r1", "other": "x"}}
    bare = {"endpoints": [], "properties": {}}
    cluster.ask("bookie.register", bookie="b1", read_only=False, info=info)
    cluster.ask("bookie.register", bookie="b2", read_only=True, info=info)
    cluster.ask("bookie.register", bookie="10.0.0.3:3182", read_only=False, info=bare)

    async def discovered(store):
        discovery = Discovery(store)
        await discovery.start()
        seen = dict(discovery.registered())
        await discovery.stop()
        return seen

    assert cluster.run(discovered) == {
        "b1": BookieInfo("10.0.0.1", 3181, "/r1"),
        "b2": BookieInfo("10.0.0.1", 3181, "/r1", True),
        "10.0.0.3:3182": BookieInfo("10.0.0.3", 3182, DEFAULT_RACK),
    }


LEDGERS = [0, 0x1234ABCD, 2**63 - 1]


def test_java_sees_the_ledgers_that_we_mark(cluster):
    laid_out(cluster)

    async def mark(store):
        await store.create(underreplication.LAYOUT, underreplication.encode_layout(), parents=True)
        for ledger in LEDGERS:
            data = underreplication.encode_missing(("b1", "10.0.0.2:3181"), 1_700_000_000_000)
            await store.create(underreplication.ledger_path_of(ledger), data, parents=True)

    cluster.run(mark)
    assert cluster.ask("missing.list") == {str(one): ["b1", "10.0.0.2:3181"] for one in LEDGERS}
    assert cluster.ask("missing.ctime", ledger=0) == 1_700_000_000_000


def test_we_see_the_ledgers_that_java_marks(cluster):
    laid_out(cluster)
    for ledger in LEDGERS:
        cluster.ask("missing.mark", ledger=ledger, replicas=["b1"])
        cluster.ask("missing.mark", ledger=ledger, replicas=["b2", "b1"])

    async def marks(store):
        assert underreplication.is_our_layout((await store.get(underreplication.LAYOUT)).data)
        found = {}
        for path, node in (await store.read_tree(underreplication.MISSING)).items():
            ledger = underreplication.ledger_of_node(path)
            if ledger is not None:
                assert path == underreplication.ledger_path_of(ledger)
                found[ledger] = underreplication.decode_missing(node.data)
        return found

    found = cluster.run(marks)
    assert {ledger: sorted(replicas) for ledger, (replicas, _) in found.items()} == {
        ledger: ["b1", "b2"] for ledger in LEDGERS
    }
    assert all(ctime_ms is not None for _, ctime_ms in found.values())


def test_java_leaves_alone_what_we_have_locked_and_takes_the_rest(cluster):
    laid_out(cluster)
    cluster.ask("missing.mark", ledger=1, replicas=["b1"])
    cluster.ask("missing.mark", ledger=2, replicas=["b1"])

    async def locked(store):
        lock = underreplication.encode_lock("b9")
        await store.create(underreplication.lock_path(1), lock, ephemeral=True)
        facts = cluster.ask("missing.locked", ledger=1), cluster.ask("missing.worker", ledger=1)
        taken = [cluster.ask("missing.take") for _ in range(2)]
        theirs = await store.get(underreplication.lock_path(2))
        cluster.ask("missing.done", ledger=2)
        return facts, taken, theirs.data

    facts, taken, theirs = cluster.run(locked)
    assert facts == (True, "b9")
    assert taken == [2, -1]
    assert underreplication.decode_lock(theirs)
    assert cluster.ask("missing.list") == {"1": ["b1"]}


def test_replication_is_switched_off_for_both_by_one_node(cluster):
    laid_out(cluster)
    cluster.ask("missing.disable")
    assert cluster.run(lambda store: store.exists(underreplication.DISABLED))
    cluster.run(lambda store: store.delete(underreplication.DISABLED))
    assert cluster.ask("missing.enabled") is True
    cluster.run(lambda store: store.create(underreplication.DISABLED))
    assert cluster.ask("missing.enabled") is False


def test_java_reads_our_delay_for_lost_bookies(cluster):
    laid_out(cluster)
    cluster.ask("missing.list")
    cluster.run(lambda store: store.create(underreplication.LOST_BOOKIE_DELAY, b"17"))
    assert cluster.ask("missing.delay") == 17


def test_java_waits_while_our_auditor_is_elected_and_follows_it(cluster):
    laid_out(cluster)
    cluster.ask("missing.list")

    async def elected(store):
        vote = underreplication.encode_vote("b9")
        await store.create(
            underreplication.VOTE, vote, ephemeral=True, sequential=True, parents=True
        )
        won = cluster.ask("missing.vote", bookie="b1", wait_ms=300)
        return won, cluster.ask("missing.auditor")

    assert cluster.run(elected) == (False, "b9")


def test_we_see_the_auditor_that_java_elected(cluster):
    laid_out(cluster)
    cluster.ask("missing.list")
    assert cluster.ask("missing.vote", bookie="b1", wait_ms=15_000) is True

    async def votes(store):
        (name,) = await store.children(underreplication.ELECTION)
        return name, (await store.get(f"{underreplication.ELECTION}/{name}")).data

    name, data = cluster.run(votes)
    assert f"{underreplication.ELECTION}/{name}".startswith(underreplication.VOTE)
    assert underreplication.decode_vote(data) == "b1"
