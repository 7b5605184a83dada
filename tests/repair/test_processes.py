"""Goal: `bookie audit` mends a cluster by itself after kill -9; the commands tell and act rightly.

Method: ZooKeeper, four bookies and auditors as real processes; commands as users run them.
"""

import asyncio
import json
import os
import pty
import subprocess

import pytest

from ledger.adapters.open_bookies import open_bookies
from ledger.adapters.system.clock import SystemClock
from ledger.client.client import LedgerClient
from ledger.ports.bookies import BookieTransport
from ledger.registry.discovery import Discovery
from ledger.repair.election import current_auditor
from tests.command_output import check_output
from tests.ledger.zookeeper_rig import lasting
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.processes import Process, wait_until
from tests.sim.seeds import first_at_commit

LEDGERS = 6
ENTRIES = 40


class Cluster:
    """Bookies whose sessions outlast what a busy machine does, unless told otherwise."""

    def __init__(self, zookeeper, folder, *options, session="20s"):
        self.zookeeper = f"{zookeeper.servers}{zookeeper.unused_chroot()}"
        self.folder = folder
        self.bookies = [
            BookieProcess(
                folder / f"b{number}",
                self.zookeeper,
                options,
                name=f"b{number}",
                session=session,
            )
            for number in range(4)
        ]
        self.audits = []

    def start(self):
        for bookie in self.bookies:
            bookie.begin()
        for bookie in self.bookies:
            bookie.wait_started()

    def stop(self):
        for audit in self.audits:
            audit.kill()
        for bookie in self.bookies:
            if bookie.running:
                bookie.stop()

    def lose(self, bookie):
        """Kill -9, and then the end of its session."""
        bookie.kill()
        asyncio.run(unregister(self.zookeeper, bookie.id))

    def audit_argv(self, *options):
        times = ["--delay-s", "1", "--grace-s", "1", "--session", "6s"]
        place = ["--zookeeper", self.zookeeper]
        return [install.gateway_python(), "-m", "ledger", "audit", *place, *times, *options]

    def start_audit(self):
        log = self.folder / f"audit-{len(self.audits)}.log"
        audit = Process(self.audit_argv(), log)
        self.audits.append(audit)
        audit.wait_output("started audit=", 60.0)
        return audit

    def run(self, *words, code=0):
        """What a command printed; stderr when it had to fail."""
        argv = [install.gateway_python(), "-m", "gateway", *words]
        environment = {**os.environ, "GATEWAY_ZOOKEEPER": self.zookeeper}
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == code, done.stdout + done.stderr
        check_output(words, done.stdout, code)
        return done.stdout if code == 0 else done.stdout + done.stderr

    def json(self, *words):
        return json.loads(self.run(*words, "-o", "json"))

    def lacking(self):
        return self.json("ledger", "list", "--lacking-copies")

    def named(self):
        """How many ledgers name each bookie."""
        return {row["bookie"]: row["ledgers"] for row in self.json("bookie", "list")}


async def unregister(zookeeper, bookie):
    store = await lasting(zookeeper)
    try:
        await store.delete(f"/ledgers/available/{bookie}")
    finally:
        await store.close()


async def write(zookeeper, ack_quorum=2):
    """Closed ledgers of three copies, of which `ack_quorum` are sure; returns their ids."""
    store = await lasting(zookeeper)
    discovery = Discovery(store)
    await discovery.start()
    bookies = open_bookies(discovery.registered, BookieTransport.TCP, None)
    client = LedgerClient(store, bookies, SystemClock())
    ledgers = []
    for _ in range(LEDGERS):
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=ack_quorum)
        done = [asyncio.get_running_loop().create_future() for _ in range(ENTRIES)]
        for number, one in enumerate(done):
            await writer.room()
            writer.add((b"entry %d " % number, b"x" * 500), one.set_result)
        assert await asyncio.gather(*done) == [None] * ENTRIES
        await writer.close()
        ledgers.append(writer.metadata.ledger)
    await bookies.close()
    await discovery.stop()
    await store.close()
    return ledgers


@pytest.fixture
def cluster(zookeeper, tmp_path):
    made = Cluster(zookeeper, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_after_kill_9_of_a_bookie_the_list_drains_to_zero_by_itself_and_all_copies_are_sound(
    cluster,
):
    asyncio.run(write(cluster.zookeeper))
    first, second = cluster.start_audit(), cluster.start_audit()
    lost = cluster.bookies[1]
    assert cluster.named()[lost.id] > 0
    cluster.lose(lost)
    wait_until(lambda: cluster.named()[lost.id] == 0, "no ledger to name the lost bookie", 60.0)
    wait_until(lambda: cluster.lacking() == [], "the repair list to be empty", 60.0)
    found = cluster.json("ledger", "verify")
    assert found["clean"]
    assert found["copies_read"] == LEDGERS * ENTRIES * 3

    first.kill()  # the auditor; the other one takes over
    cluster.bookies[1].start()
    wait_until(lambda: len(cluster.named()) == 4, "the bookie to be back", 60.0)
    lost = cluster.bookies[2]
    cluster.lose(lost)
    wait_until(lambda: cluster.named()[lost.id] == 0, "the second loss to be mended", 60.0)
    cluster.run("bookie", "decommission", lost.id, "--yes")
    assert lost.id not in cluster.named()
    assert "clean" in cluster.run("ledger", "verify")
    assert second.stop() == 0


async def auditor(zookeeper):
    """The id of the elected auditor, or None."""
    store = await lasting(zookeeper)
    try:
        return await current_auditor(store)
    finally:
        await store.close()


@pytest.mark.proof
def test_bookies_with_audit_repair_the_loss_of_each_other_and_of_the_auditor(zookeeper, tmp_path):
    cluster = Cluster(zookeeper, tmp_path, "--audit", "--audit-delay", "1s", session="5s")
    try:
        cluster.start()
        asyncio.run(write(cluster.zookeeper, ack_quorum=3))
        elected = wait_until(lambda: asyncio.run(auditor(cluster.zookeeper)), "an auditor")
        lost = next(one for one in cluster.bookies if f"-{one.process.pid}-" in elected)
        assert cluster.named()[lost.id] > 0
        lost.kill()
        wait_until(lambda: cluster.named()[lost.id] == 0, "no ledger to name the lost one", 60.0)
        wait_until(lambda: cluster.lacking() == [], "the repair list to be empty", 60.0)
        found = cluster.json("ledger", "verify")
        assert found["clean"]
        assert found["copies_read"] == LEDGERS * ENTRIES * 3
        assert asyncio.run(auditor(cluster.zookeeper)) != elected
        living = [one for one in cluster.bookies if one is not lost]
        assert [one.stop() for one in living] == [0] * 3
        assert not any("Traceback" in one.output() for one in living)
    finally:
        cluster.stop()


@pytest.mark.proof
def test_audit_once_ends_with_0_when_all_is_whole_and_with_1_when_something_is_left(cluster):
    ledgers = asyncio.run(write(cluster.zookeeper))
    cluster.lose(cluster.bookies[0])
    gone = cluster.bookies[0].id
    wait_until(
        lambda: (
            next(r for r in cluster.json("bookie", "list") if r["bookie"] == gone)["status"]
            == "away"
        ),
        "the bookie to be seen away",
    )
    done = subprocess.run(
        cluster.audit_argv("--once", "-o", "json"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    check_output(("audit", "-o", "json"), done.stdout, program="bookie")
    assert json.loads(done.stdout)["left"] == 0
    assert cluster.json("ledger", "verify")["clean"]

    cluster.lose(cluster.bookies[1])  # two are left: three copies have no place
    wait_until(lambda: "away" in cluster.run("bookie", "list").split(), "it to be away")
    wait_until(
        lambda: [r["status"] for r in cluster.json("bookie", "list")].count("away") == 2,
        "both to be away",
    )
    done = subprocess.run(cluster.audit_argv("--once"), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "no other bookie can replace" in done.stdout
    why = cluster.run("ledger", "why", str(ledgers[0]))
    assert f"{cluster.bookies[1].id} is absent." in why
    assert "The last attempt could not repair it: no other bookie" in why
    assert "on the repair list because of" in why
    show = cluster.json("ledger", "show", str(ledgers[0]))
    assert sorted(row["status"] for row in show["copies"]) == ["away", "rw", "rw"]
    assert "DAMAGED" in cluster.run("ledger", "verify", str(ledgers[0]), code=1)
    refused = cluster.run("bookie", "decommission", cluster.bookies[2].id, "--yes", code=1)
    assert "registered as writable: stop it first" in refused


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("ledger", "show"), "LEDGER is missing (Id of the ledger)"),
        (("ledger", "show", "x"), "LEDGER x: must be a whole number"),
        (("ledger", "recover", "3"), "add --yes"),
        (("ledger", "recover", "3", "--accept-loss"), "gives up every entry"),
        (("ledger", "list", "--state", "HALF"), "must be OPEN, IN_RECOVERY or CLOSED"),
        (("ledger", "list", "-z", "nowhere"), "must be host:port"),
        (("ledger", "list", "-z", "localhost:1", "--tls", "/nowhere"), "tls.crt is missing"),
        (("bookie", "decommission", "b1"), "add --yes"),
        (("bookie", "decommission"), "BOOKIE is missing (Id of the bookie"),
        (("bookie", "decommission", "b1", "--timeout", "5"), "--timeout 5: 5 has no unit"),
        (
            ("bookie", "decommission", "b1", "--timeout-s", "-1"),
            "--timeout-s -1: must be between 0ms and 3650d",
        ),
        (("bookie", "decommission", "b1", "--timeout-s", "x"), "--timeout-s x: must be a"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_word(words, hint):
    argv = [install.gateway_python(), "-m", "gateway", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr


@pytest.mark.parametrize(("typed", "code"), [("7", 69), ("8", 2)])
def test_on_a_terminal_the_ledgers_id_may_be_typed_instead_of_yes(typed, code):
    ours, theirs = pty.openpty()
    argv = [install.gateway_python(), "-m", "gateway", "ledger", "recover", "7"]
    with subprocess.Popen(
        [*argv, "-z", "127.0.0.1:1"], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    ) as command:
        os.write(ours, f"{typed}\n".encode())
        command.wait(60)
    os.close(theirs)
    os.close(ours)
    assert command.returncode == code  # 69: it went on to look for ZooKeeper


@pytest.mark.parametrize(
    "words", first_at_commit([("ledger", "list"), ("bookie", "list", "-o", "json")], 1)
)
def test_without_zookeeper_the_exit_code_is_69_and_one_line_says_so(words):
    argv = [install.gateway_python(), "-m", "gateway", *words, "-z", "127.0.0.1:1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (69, "", 1)
    assert "no ZooKeeper" in done.stderr


def test_audit_says_all_that_is_wrong_with_its_flags_at_once():
    argv = [install.gateway_python(), "-m", "ledger", "audit"]
    argv += ["--delay-s", "-1", "--zookeeper", "x", "--session", "3", "--tls-key", "k"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    for word in ("--delay-s -1", "--zookeeper x", "--session 3", "all of them or none"):
        assert word in done.stderr


def test_audit_without_a_cluster_says_so(zookeeper):
    place = f"{zookeeper.servers}{zookeeper.unused_chroot()}"
    argv = [install.gateway_python(), "-m", "ledger", "audit", "--zookeeper", place]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    assert "no cluster is laid out here" in done.stderr
