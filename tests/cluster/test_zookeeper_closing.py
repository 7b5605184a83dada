"""Goal: a running cluster closes its nodes in ZooKeeper and goes on to TLS; no client notices.

Method: a real ZooKeeper that applies ACLs, bookies, an auditor and gateways as processes, which
restart one after the other with the settings of each step. An idempotent producer of librdkafka
and the members of a group go on meanwhile; every error is noted.
"""

from __future__ import annotations

import json

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from tests.cluster.test_rolling_restart import GRACE_S, MEMBERS, PARTITIONS, Load, wait_more
from tests.gateway.admin_commands import invoke
from tests.ledger.authority import Authority
from tests.ledger.test_zookeeper_tls import keystore
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import Gateways
from tests.peers.processes import Process, wait_until
from tests.peers.zookeeper import ServerTls, ZooKeeper

CHROOT = "/kafka"


class Secrets:
    """Files with the identities."""

    def __init__(self, directory):
        self.cluster, self.reader = directory / "cluster.secret", directory / "reader.secret"
        for file in (self.cluster, self.reader):
            file.write_text(f"{file.stem}:password-of-{file.stem}\n")
            file.chmod(0o600)
        authority = Authority(directory / "authority", "ours")
        self.ca = authority.path / "ca.pem"
        self.own = keystore(authority.files("cluster"))
        self.server_tls = ServerTls(keystore(authority.files("zookeeper")), self.ca)
        self.reads = directory / "reader.properties"
        self.reads.write_text(f"zookeeper.auth=file:{self.reader}\n")
        self.admin = directory / "admin.properties"
        self.admin.write_text(
            f"zookeeper.auth=file:{self.cluster}\nzookeeper.read.auth=file:{self.reader}\n"
        )

    def options(self, more):
        words = ["--zookeeper-auth", f"file:{self.cluster}"]
        return [*words, "--zookeeper-read-auth", f"file:{self.reader}", *more]

    def tls(self):
        """Return the options of TLS at ZooKeeper."""
        return [
            "--zookeeper-ssl-client-enable",
            *("--zookeeper-ssl-truststore-location", str(self.ca)),
            *("--zookeeper-ssl-keystore-location", str(self.own)),
        ]


class Cluster:
    """ZooKeeper, three bookies, an auditor and two gateways, all with the same `options`."""

    def __init__(self, directory, tls):
        self.server = ZooKeeper(directory / "zookeeper", applies_acls=True, tls=tls)
        self.directory = directory
        self.options = []
        self.auditor = None

    def __enter__(self):
        self.server.start()
        self.servers = f"{self.server.servers}{CHROOT}"
        self.bookies = [
            BookieProcess(self.directory / f"bookie-{number}", self.servers, name=f"b{number}")
            for number in range(3)
        ]
        for bookie in self.bookies:
            bookie.start()
        self.start_auditor()
        self.gateways = Gateways(self.directory, self.servers, 2, session_ms=10_000).start()
        return self

    def __exit__(self, *error):
        self.gateways.kill()
        self.auditor.kill()
        for bookie in self.bookies:
            bookie.kill()
        self.server.kill()

    def start_auditor(self):
        words = [install.gateway_python(), "-m", "ledger", "audit", "--zookeeper", self.servers]
        self.auditor = Process([*words, *self.options], self.directory / "audit.log")

    def roll(self, options, between):
        """Restart each process with these options; call `between` after each."""
        self.options = options
        self.auditor.kill()
        self.start_auditor()
        for each in [*self.bookies, *self.gateways]:
            between()
            assert each.stop() == 0
            each.options = list(options)
            each.begin()
            each.wait_started()
        between()

    def move_to_tls(self, options, between):
        """Restart each process, which then reaches ZooKeeper by TLS alone."""
        self.servers = f"{self.server.secure_servers}{CHROOT}"
        for each in [*self.bookies, *self.gateways]:
            each.zookeeper = self.servers
        self.roll(options, between)


@pytest.mark.proof
def test_the_change_from_open_to_closed_fails_no_record(tmp_path):
    secrets = Secrets(tmp_path)
    with Cluster(tmp_path, secrets.server_tls) as cluster:
        gateways, servers = cluster.gateways, cluster.servers
        create = ("topic", "create", "t", "-p", str(PARTITIONS))
        assert invoke(*create, bootstrap=gateways.bootstrap)[0] == 0
        load = Load(gateways.bootstrap)
        try:
            wait_until(lambda: sum(load.assigned[-MEMBERS:]) == PARTITIONS, "members", 60.0)
            for set_acl in ("off", "migrate"):
                options = secrets.options(["--zookeeper-set-acl", set_acl])
                cluster.roll(options, lambda: wait_more(load))
                assert "open to world:anyone" in gateways[0].output()
            check = ("security", "zookeeper", "-z", servers, "--command-config", secrets.admin)
            code, out, _ = run(*check, "--check", "-o", "json")
            found = json.loads(out)
            assert (code, found["open"] > 0) == (1, True)
            code, out, err = run(*check, "--apply", "-o", "json")
            done = json.loads(out)
            assert (code, done["left"], done["changed"] > 0) == (0, 0, True), (out, err)
            wait_more(load)
            cluster.roll(secrets.options([]), lambda: wait_more(load))
            assert run(*check, "--check")[0] == 0
            cluster.move_to_tls(secrets.options(secrets.tls()), lambda: wait_more(load))
            closed_to_the_world(cluster.server)
            reader = ("--command-config", secrets.reads, "-z", servers)  # the plain port
            assert run("ledger", "list", *reader)[0] == 0
            assert run("bookie", "list", *reader)[0] == 0
            code, _, err = run("ledger", "list", "-z", servers)
            assert (code, "set zookeeper-auth" in err) == (77, True)
        finally:
            load.stop()
    assert load.errors == []
    assert load.read >= load.acknowledged - set(sorted(load.acknowledged)[-1000:])


def run(*words):
    return invoke(*map(str, words))


def closed_to_the_world(server):
    """Assert that a client without an identity reads and changes nothing of the cluster."""
    client = KazooClient(server.servers)
    client.start(GRACE_S)
    try:
        for path in (CHROOT, f"{CHROOT}/ledgers", f"{CHROOT}/gateway"):
            with pytest.raises(NoAuthError):
                client.get_children(path)
            with pytest.raises(NoAuthError):
                client.create(f"{path}/mine")
    finally:
        client.stop()
        client.close()
