"""Goal: a bookie process keeps its promises through every way to end, start, move and lose it.

Method: the real process against a real ZooKeeper, asked over gRPC; ended by its id. Old data are
copies of its directory that are put back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.adapters.links.link_config import TlsFiles
from ledger.ids import BookieId
from ledger.ports.bookies import BookieInfo, Status
from ledger.registry.cookie import cookie_path, decode
from ledger.registry.layout import read_instance_id
from ledger.registry.limbo_bookies import announced_limbo
from tests.ledger.authority import Authority
from tests.ledger.zookeeper_rig import lasting
from tests.node.cluster_rig import Cluster
from tests.peers.bookie import BookieProcess
from tests.peers.copies import copy_at_work
from tests.peers.processes import free_port, wait_until
from tests.peers.zookeeper import ZooKeeper
from tests.sim.bookie_world import entry_bytes
from tests.sim.seeds import first_at_commit

pytestmark = pytest.mark.real_loop

FIRST_FREE_LEDGER = 50


@contextlib.contextmanager
def ended_with(*bookies: BookieProcess) -> Iterator[None]:
    try:
        yield
    finally:
        for bookie in bookies:
            if bookie.running:
                bookie.kill()


@pytest.fixture
def bookie(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[BookieProcess]:
    """One of a cluster of its own, not started. Its session outlasts what a busy machine does."""
    place = zookeeper.servers + zookeeper.unused_chroot()
    made = BookieProcess(tmp_path / "bookie", place, rack="/row-1", session="20s")
    with ended_with(made):
        yield made


def seen_from_outside(bookie: BookieProcess, tls=None) -> Cluster:
    return Cluster(bookie.zookeeper, tls)


async def off_loop(call, *words):
    """A call that waits for a process, beside the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, call, *words)


async def store_two(cluster: Cluster, bookie: BookieProcess) -> None:
    """Ledger 1 is open, ledger 2 closed; each has entry 0 here."""
    await cluster.until_serves(bookie.id)
    await cluster.spend_ids(FIRST_FREE_LEDGER)
    await cluster.name_ledger(bookie.id, 1)
    await cluster.name_ledger(bookie.id, 2, closed_at=0)
    for ledger in (1, 2):
        assert await cluster.add(bookie.id, ledger, 0) is Status.OK


async def expect_whole(cluster: Cluster, bookie: BookieProcess) -> None:
    await cluster.until_serves(bookie.id)
    assert await announced_limbo(cluster.store) == {}
    for ledger in (1, 2):
        assert (await cluster.read(bookie.id, ledger, 0)).body == entry_bytes(ledger, 0, b"x")
        assert (await cluster.read(bookie.id, ledger, 1)).status is Status.NO_ENTRY
    assert await cluster.add(bookie.id, 1, 1) is Status.OK


async def expect_limbo(cluster: Cluster, bookie: BookieProcess) -> None:
    await cluster.until_serves(bookie.id)
    for ledger in (1, 2):
        assert (await cluster.read(bookie.id, ledger, 19)).status is Status.UNKNOWN_LEDGER_STATE
    assert bookie.id in await announced_limbo(cluster.store)
    for ledger in (1, 2, FIRST_FREE_LEDGER - 1):
        assert await cluster.add(bookie.id, ledger, 9) is Status.FENCED
    assert await cluster.add(bookie.id, 1, 9, recovery=True) is Status.OK
    assert await cluster.add(bookie.id, 1_000, 0) is Status.OK


# -- life ------------------------------------------------------------------------------------------


async def test_it_says_where_it_is_and_is_registered_there_until_it_stops(bookie):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        assert bookie.output().rstrip() == f"started bookie={bookie.id} address={bookie.address}"
        await cluster.until_serves(bookie.id)
        (info,) = cluster.discovery.registered().values()
        assert len(info.start) == 8
        assert info == BookieInfo(
            "127.0.0.1", info.port, "/row-1", start=info.start, tcp_port=bookie.port
        )
        cookie = decode((await cluster.store.get(cookie_path(BookieId(bookie.id)))).data)
        assert cookie.bookie_host == bookie.id
        assert cookie.instance_id == await read_instance_id(cluster.store)
        assert await off_loop(bookie.stop) == 0
        await cluster.until_gone(bookie.id)


def test_it_serves_its_metrics_and_health_if_it_has_an_http_port(bookie, tmp_path):
    bookie.options = ["--http-port", "0"]
    bookie.start()
    url = wait_until(lambda: re.search(r"^metrics: (\S+)$", bookie.output(), re.M), "its port")[1]
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    assert f'bookie_info{{bookie="{bookie.id}",release="' in text
    assert "bookie_sync_seconds_count" in text
    with urllib.request.urlopen(url.replace("/metrics", "/health/ready"), timeout=60) as answer:
        assert answer.read() == b'{"status": "ok", "reasons": []}'
    taken = url.rpartition(":")[2].partition("/")[0]
    other = BookieProcess(tmp_path / "other", bookie.zookeeper, ["--http-port", taken])
    with ended_with(other):
        assert other.begin().wait_exit() == 78
        (line,) = other.output().splitlines()
        assert f"cannot listen on 127.0.0.1 port {taken}" in line


@pytest.mark.parametrize("kill", [False, True])
async def test_it_comes_back_as_itself_with_all_it_had(bookie, kill):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        name = bookie.id
        await store_two(cluster, bookie)
        await off_loop(lambda: bookie.restart(kill=kill))
        assert bookie.id == name
        await expect_whole(cluster, bookie)
        assert "level=" not in bookie.output()


def test_sigint_ends_it_with_130(bookie):
    bookie.start()
    bookie.process.send_signal(signal.SIGINT)
    assert bookie.wait_exit() == 130


async def test_a_second_signal_ends_it_at_once(bookie):
    async with seen_from_outside(bookie) as cluster:
        bookie.options += ["--drain", "10m"]
        await off_loop(bookie.start)
        await cluster.until_serves(bookie.id)  # our streams stay open: the drain lasts
        bookie.process.send_signal(signal.SIGTERM)
        await cluster.until_gone(bookie.id)
        assert bookie.running
        bookie.process.send_signal(signal.SIGTERM)
        assert await off_loop(bookie.wait_exit) == 128 + signal.SIGTERM


def with_tls(bookie, files):
    bookie.options += ["--tls-cert", str(files.cert), "--tls-key", str(files.key)]
    bookie.options += ["--tls-ca", str(files.ca)]


async def test_with_tls_it_serves_who_has_a_certificate_and_nobody_else(bookie, tmp_path):
    authority = Authority(tmp_path / "authority", "our authority")
    ours, theirs = authority.files("bookie"), authority.files("gateway")
    with_tls(bookie, ours)

    bookie.start()

    async with seen_from_outside(bookie) as cluster:
        await cluster.until_registered(bookie.id)
        assert await cluster.add(bookie.id, 1, 0) is Status.UNREACHABLE
    async with seen_from_outside(bookie, theirs) as cluster:
        await cluster.until_serves(bookie.id)
        assert await cluster.add(bookie.id, 1, 0) is Status.OK


async def test_sighup_gives_new_connections_new_certificates_and_keeps_open_ones(bookie, tmp_path):
    authority = Authority(tmp_path / "authority", "our authority")
    ours, reader = authority.files("bookie"), authority.files("reader")
    with_tls(bookie, ours)
    await off_loop(bookie.start)
    later = Authority(tmp_path / "later", "another authority")
    new, new_reader = later.files("bookie"), later.files("reader")
    async with seen_from_outside(bookie, reader) as cluster:
        await cluster.until_serves(bookie.id)
        assert await cluster.add(bookie.id, 1, 0) is Status.PERMISSION_DENIED
        for name in ("cert", "key", "ca"):
            getattr(new, name).replace(getattr(ours, name))
        bookie.process.send_signal(signal.SIGHUP)
        new_reader = TlsFiles(cert=new_reader.cert, key=new_reader.key, ca=ours.ca)
        async with seen_from_outside(bookie, new_reader) as again:
            await again.until_serves(bookie.id)
        assert (await cluster.bookies.stats(bookie.id)).status is Status.OK


async def test_without_roles_it_serves_every_certificate_and_warns(bookie, tmp_path):
    authority = Authority(tmp_path / "authority", "our authority")
    with_tls(bookie, authority.files("bookie", roles=[]))
    bookie.options += ["--tls-roles", "off"]
    await off_loop(bookie.start)
    nobody = authority.files("nobody")
    anyone = TlsFiles(cert=nobody.cert, key=nobody.key, ca=nobody.ca, roles=False)
    async with seen_from_outside(bookie, anyone) as cluster:
        await cluster.until_serves(bookie.id)
        assert await cluster.add(bookie.id, 1, 0) is Status.OK
    assert "roles are turned off" in bookie.output()


async def test_a_bookie_that_others_reach_without_tls_warns(bookie):
    bookie.options += ["--host", "0.0.0.0", "--advertised-host", "127.0.0.1", "--allow-insecure"]
    await off_loop(bookie.start)
    async with seen_from_outside(bookie) as cluster:
        await cluster.until_serves(bookie.id)
    assert "without TLS (--allow-insecure)" in bookie.output()


async def test_a_stop_answers_what_was_asked_before(bookie):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        await cluster.until_serves(bookie.id)
        assert await cluster.add(bookie.id, 1, 0) is Status.OK
        adds = [cluster.add(bookie.id, 1, entry, bytes(1000)) for entry in range(1, 400)]
        statuses = asyncio.gather(*adds)
        assert await off_loop(bookie.stop) == 0
        answered = await statuses
        acked = [entry for entry, status in enumerate(answered, 1) if status is Status.OK]
        await off_loop(bookie.start)
        await cluster.until_serves(bookie.id)
        for entry in (0, *acked):
            assert (await cluster.read(bookie.id, 1, entry)).status is Status.OK


async def test_killed_under_adds_it_has_every_entry_it_acknowledged(bookie):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        await cluster.until_serves(bookie.id)
        acked: set[int] = set()
        for entry in range(3_000):
            done = cluster.add(bookie.id, 1, entry, bytes(100 + entry % 2000))
            done.add_done_callback(
                lambda done, entry=entry: acked.add(entry) if done.result() is Status.OK else None
            )
            if entry % 50 == 0:
                await asyncio.sleep(0)
            if len(acked) > 500:
                bookie.kill()
                break
        await cluster.until(lambda: not bookie.running or len(acked) > 500, "many adds")
        if bookie.running:
            bookie.kill()
        await off_loop(bookie.start)
        await cluster.until_serves(bookie.id)
        assert len(acked) > 100
        for entry in acked:
            found = (await cluster.read(bookie.id, 1, entry)).body
            assert found == entry_bytes(1, entry, bytes(100 + entry % 2000))


# -- identity --------------------------------------------------------------------------------------


async def test_a_wiped_directory_is_another_bookie_that_knows_no_old_ledger(bookie):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        old = bookie.id
        await store_two(cluster, bookie)
        await off_loop(bookie.stop)
        shutil.rmtree(bookie.data)
        await off_loop(bookie.start)
        assert bookie.id != old
        await cluster.until_serves(bookie.id)
        await cluster.until_gone(old)
        assert (await cluster.read(bookie.id, 1, 0)).status is Status.NO_LEDGER
        assert (await cluster.read(old, 1, 0)).status is Status.UNREACHABLE


@pytest.mark.parametrize(
    "copied", first_at_commit(["running, then killed", "running", "stopped"], 1)
)
async def test_old_data_put_back_are_fenced_and_in_limbo(bookie, copied, tmp_path):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        await store_two(cluster, bookie)
        if copied == "stopped":
            await off_loop(bookie.stop)
        copy_at_work(bookie.data, tmp_path / "copy")
        if copied == "stopped":
            await off_loop(bookie.start)
            await cluster.until_serves(bookie.id)
        assert await cluster.add(bookie.id, 1, 1) is Status.OK
        await off_loop(bookie.kill if copied.endswith("killed") else bookie.stop)
        shutil.rmtree(bookie.data)
        shutil.copytree(tmp_path / "copy", bookie.data)
        await off_loop(bookie.start)
        assert "may have lost entries" in bookie.output()
        await expect_limbo(cluster, bookie)
        await off_loop(lambda: bookie.restart(kill=True))
        await expect_limbo(cluster, bookie)


async def test_a_missing_cookie_is_a_loss(bookie):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        await store_two(cluster, bookie)
        await off_loop(bookie.stop)
        await cluster.store.delete(cookie_path(BookieId(bookie.id)))
        await off_loop(bookie.start)
        assert 'reason="its cookie is missing"' in bookie.output()
        await expect_limbo(cluster, bookie)


@pytest.mark.parametrize("lost", first_at_commit(["log and index", "index and one log file"], 1))
async def test_a_log_that_is_gone_with_its_index_is_a_loss(bookie, lost):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        await store_two(cluster, bookie)
        await off_loop(bookie.restart)
        await off_loop(bookie.stop)
        shutil.rmtree(bookie.data / "index")
        logs = sorted(bookie.data.glob("log-*"))
        for log in logs if lost == "log and index" else logs[:1]:
            log.unlink()
        await off_loop(bookie.start)
        assert "may have lost entries" in bookie.output()
        await expect_limbo(cluster, bookie)


async def test_rot_puts_every_older_ledger_into_limbo(bookie):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        await store_two(cluster, bookie)
        assert await cluster.add(bookie.id, 1, 1) is Status.OK
        await off_loop(bookie.kill)
        log = min(bookie.data.glob("log-*"))
        content = bytearray(log.read_bytes())
        content[4096 + 90] ^= 1
        log.write_bytes(content)
        shutil.rmtree(bookie.data / "index")
        await off_loop(bookie.start)
        assert "damaged log" in bookie.output()
        await expect_limbo(cluster, bookie)
        assert (await cluster.read(bookie.id, 2, 9)).status is Status.UNKNOWN_LEDGER_STATE


def test_one_directory_serves_one_process(bookie):
    bookie.start()
    twin = BookieProcess(bookie.data, bookie.zookeeper)
    with ended_with(twin):
        assert twin.begin().wait_exit() == 78
        lines = twin.output().splitlines()
        assert len(lines) == 1
        assert "is held by another process" in lines[0]
    assert bookie.running


async def test_of_two_with_one_identity_the_second_is_refused_and_the_first_loses_nothing(
    bookie, tmp_path
):
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        await store_two(cluster, bookie)
        copy_at_work(bookie.data, tmp_path / "copy")
        twin = BookieProcess(tmp_path / "copy", bookie.zookeeper, rack="/row-1")
        with ended_with(twin):
            while (code := await off_loop(twin.begin().wait_exit)) == 69:
                pass  # a busy machine cost it its short session
            assert code == 78
            said = twin.output()
            assert "is registered by another process at 127.0.0.1" in said
            assert len(said.splitlines()) == 1
        await off_loop(bookie.restart)
        await expect_whole(cluster, bookie)


def test_a_misspelt_chroot_is_named_and_a_bookie_of_a_cluster_makes_nothing_there(
    bookie, zookeeper
):
    bookie.restart()
    bookie.stop()
    chroot = zookeeper.unused_chroot()
    home, bookie.zookeeper = bookie.zookeeper, zookeeper.servers + chroot
    assert bookie.begin().wait_exit() == 78
    (said,) = bookie.output().splitlines()
    assert f"is the chroot {chroot} right?" in said
    assert not is_made(zookeeper, chroot)
    bookie.zookeeper = home
    bookie.start()
    assert "level=" not in bookie.output()


def test_a_log_without_its_standing_is_no_new_bookie_and_makes_no_cluster(bookie, zookeeper):
    """As an embedded bookie's directory is."""
    bookie.restart()
    bookie.stop()
    for standing in bookie.data.glob("standing-*"):
        standing.unlink()
    chroot = zookeeper.unused_chroot()
    bookie.zookeeper = zookeeper.servers + chroot
    assert bookie.begin().wait_exit() == 78
    assert not is_made(zookeeper, chroot)


def is_made(zookeeper: ZooKeeper, chroot: str) -> bool:
    async def main() -> bool:
        store = await lasting(zookeeper.servers)
        try:
            return await store.exists(chroot)
        finally:
            await store.close()

    return asyncio.run(main())


def test_the_first_bookie_says_that_it_laid_out_a_cluster_and_no_later_one_does(
    zookeeper, tmp_path
):
    chroot = zookeeper.servers + zookeeper.unused_chroot()
    bookies = [
        BookieProcess(tmp_path / name, chroot, name=name, session="20s") for name in ("b1", "b2")
    ]
    said = []
    for bookie in bookies:
        bookie.start()
        said.append([line for line in bookie.output().splitlines() if "level=" in line])
        bookie.stop()
    (line,), nothing = said
    assert "laid out a new cluster" in line and f"zookeeper={chroot}" in line
    assert nothing == []


def test_a_directory_of_another_cluster_is_refused_and_left_alone(bookie, zookeeper, tmp_path):
    bookie.restart()
    bookie.stop()
    before = {path: path.read_bytes() for path in bookie.data.glob("[VSls]*") if path.is_file()}
    home, bookie.zookeeper = bookie.zookeeper, zookeeper.servers + zookeeper.unused_chroot()
    with_other = BookieProcess(tmp_path / "other", bookie.zookeeper).start()
    with_other.stop()
    assert bookie.begin().wait_exit() == 78
    said = bookie.output()
    assert said.count("cluster ") == 2
    assert len(said.splitlines()) == 1
    after = {path: path.read_bytes() for path in bookie.data.glob("[VSls]*") if path.is_file()}
    assert after == before
    bookie.zookeeper = home
    bookie.start()
    assert "level=" not in bookie.output()


def test_another_name_over_the_same_directory_is_refused(bookie):
    bookie.restart()
    name = bookie.id
    bookie.stop()
    bookie.name = "other"
    assert bookie.begin().wait_exit() == 78
    assert name in bookie.output()
    assert "other-" in bookie.output()


# -- ZooKeeper comes and goes ----------------------------------------------------------------------


@pytest.mark.proof
def test_without_zookeeper_it_waits_says_so_and_gives_up(tmp_path):
    nobody, wait = f"127.0.0.1:{free_port()}", ("--zookeeper-wait", "2500ms")
    bookie = BookieProcess(tmp_path / "bookie", nobody, wait, session="1s")  # a try lasts as long
    lines: list[str] = []
    tries = iter(range(5))
    with ended_with(bookie):  # one line is the end of a process that stood still while it waited
        while len(lines) < 2 and next(tries, None) is not None:
            assert bookie.begin().wait_exit() == 69
            lines = bookie.output().splitlines()
    assert 'event="ZooKeeper does not answer"' in lines[0]
    assert lines[-1].startswith("bookie: --zookeeper 127.0.0.1:")
    assert "Traceback" not in bookie.output()


@pytest.mark.proof
def test_a_signal_ends_it_while_it_waits(tmp_path):
    bookie = BookieProcess(tmp_path / "bookie", f"127.0.0.1:{free_port()}")
    with ended_with(bookie):
        bookie.begin()
        bookie.process.wait_output("does not answer", 60.0)
        assert bookie.stop() == 0
        assert "Traceback" not in bookie.output()


async def test_after_a_lost_session_it_is_registered_again(bookie):
    bookie.session = "1s"
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        for _ in range(2):
            await cluster.until_registered(bookie.id)
            bookie.pause()
            await cluster.until_gone(bookie.id)
            bookie.resume()
        await cluster.until_serves(bookie.id)
        assert await cluster.add(bookie.id, 1, 0) is Status.OK


async def test_while_zookeeper_is_away_it_serves_and_afterwards_it_is_registered_again(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper(tmp_path / "zookeeper"))
        bookie = BookieProcess(tmp_path / "bookie", zookeeper.servers)
        stack.enter_context(ended_with(bookie))
        cluster = await stack.enter_async_context(seen_from_outside(bookie))
        await off_loop(bookie.start)
        await store_two(cluster, bookie)
        zookeeper.kill()
        await asyncio.sleep(3)  # three sessions of the bookie
        for entry in range(1, 50):
            assert await cluster.add(bookie.id, 1, entry) is Status.OK
        assert (await cluster.read(bookie.id, 2, 0)).status is Status.OK
        await off_loop(zookeeper.start)
        await cluster.until_serves(bookie.id)

        async def listed() -> bool:
            return bookie.id in await cluster.store.children("/ledgers/available")

        await cluster.until(listed, "the bookie's new node")


@pytest.mark.proof
def test_it_stops_in_seconds_though_zookeeper_is_away(tmp_path):
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        bookie = BookieProcess(tmp_path / "bookie", zookeeper.servers)
        with ended_with(bookie):
            bookie.start()
            zookeeper.kill()
            assert bookie.stop() == 0
            zookeeper.start()
            bookie.start()
            assert "may have lost" not in bookie.output()


# -- the disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_bytes_max", [0, 8192], ids=["nothing", "no log"])
async def test_a_failing_disk_ends_the_process_after_refusing_what_was_asked(
    bookie, file_bytes_max
):
    """The kernel refuses to let files grow; at 0 not even stderr can say so."""
    async with seen_from_outside(bookie) as cluster:
        await off_loop(bookie.start)
        await store_two(cluster, bookie)
        limit = (file_bytes_max, resource.RLIM_INFINITY)
        resource.prlimit(bookie.process.pid, resource.RLIMIT_FSIZE, limit)
        statuses = await asyncio.gather(*[cluster.add(bookie.id, 1, e) for e in range(1, 20)])
        assert set(statuses) <= {Status.IO_ERROR, Status.UNREACHABLE}
        assert Status.IO_ERROR in statuses
        assert await off_loop(bookie.wait_exit) == 74
        if file_bytes_max:
            assert "nothing more is acknowledged" in bookie.output()
        assert "Traceback" not in bookie.output()
        await cluster.until_gone(bookie.id)
        await off_loop(bookie.start)
        await expect_whole(cluster, bookie)


async def test_what_was_deleted_is_given_back(bookie):
    async with seen_from_outside(bookie) as cluster:
        bookie.options += ["--gc-interval", "200ms"]
        await off_loop(bookie.start)
        await store_two(cluster, bookie)
        payload = os.urandom(1 << 20)
        await cluster.name_ledger(bookie.id, 3)
        for entry in range(70):
            assert await cluster.add(bookie.id, 3, entry, payload) is Status.OK
        before = await cluster.bookies.stats(BookieId(bookie.id))
        await cluster.forget_ledger(3)

        async def gone() -> bool:
            return (await cluster.read(bookie.id, 3, 0)).status is Status.NO_LEDGER

        await cluster.until(gone, "the ledger to go")
        first = bookie.data / "log-0000000000000001"
        await cluster.until(lambda: not first.exists(), "the file to go")
        await expect_whole(cluster, bookie)
        assert (await cluster.bookies.stats(BookieId(bookie.id))).ledgers == before.ledgers - 1
