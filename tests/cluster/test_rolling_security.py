"""Goal: a running cluster changes from PLAINTEXT to SASL_SSL with ACLs, and no client fails.

Method: ZooKeeper, three bookies and three gateways as processes. The gateways restart one after the
other with the settings of each step in docs/security.md, which the test takes from there. An
idempotent producer of librdkafka, one of aiokafka, a transactional one, and the members of a group
work meanwhile, and move to the new listener between two steps. Every error that reaches a client is
noted, and at the end each acknowledged record must be there once. Transactions write to partitions
of all gateways, so their ends show whether gateways reach each other in every round.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.cluster.rolling_load import PARTITIONS, TOPIC, Load, Place, stored
from tests.cluster.world import World
from tests.gateway.admin_commands import invoke
from tests.gateway.pki import Authority
from tests.peers import install
from tests.peers.gateway import ClusterGateway
from tests.peers.processes import ports_in_a_row, wait_until

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
HEADING = "## From PLAINTEXT to SASL_SSL"
RIGHTS = ("read,write topic:t", "read group:g", "write transactional-id:rolling")
GATEWAYS = 3
MORE = 150  # records between two restarts
WAIT_S = 90.0
PASSWORDS = {"gateway": "password-of-gateways", "admin": "password-of-admin", "alice": "of-alice"}


def steps():
    """Return the settings of each step, by its number, as the page has them."""
    section = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    found = {}
    for part in re.split(r"^(?=\d\. )", section, flags=re.MULTILINE)[1:]:
        settings = re.search(r"```properties\n(.*?)```", part, re.DOTALL)
        if settings:
            lines = [each.strip() for each in settings[1].splitlines()]
            found[int(part[0])] = dict(each.split("=", 1) for each in lines if each)
    return found


class RollingGateway(ClusterGateway):
    """A gateway whose listeners are in a file with Kafka's keys."""

    def __init__(self, directory, zookeeper, node_id, ports, secrets):
        plain, secure = ports
        super().__init__(
            directory / f"gateway-{node_id}", zookeeper, node_id=node_id, port=plain,
            session_ms=10_000,
        )  # fmt: skip
        self.secure, self.secrets = secure, secrets
        self.settings = {"listeners": "PLAINTEXT://0.0.0.0:9092"}

    def argv(self):
        file = self.data.with_suffix(".properties")
        file.write_text("".join(f"{k}={self._here(v)}\n" for k, v in self.settings.items()))
        words = [install.gateway_python(), "-m", "gateway", "serve", "--config", str(file)]
        words += ["--zookeeper", self.zookeeper, "--node-id", str(self.node_id)]
        return [*words, "--session", f"{self.session_ms}ms", "--rack", f"r{self.node_id}"]

    def _here(self, value):
        """Return a value of the page for this machine: other ports and files, loopback alone."""
        value = value.replace("0.0.0.0", "127.0.0.1").replace("gateway-1:", "127.0.0.1:")
        value = value.replace(":9092", f":{self.port}").replace(":9093", f":{self.secure}")
        return value.replace("/etc/kafka/gateway-1.pem", "/etc/kafka/server.pem").replace(
            "/etc/kafka", str(self.secrets)
        )

    def serves(self):
        return "started" in self.output()


class Cluster:
    """The gateways, and how each of their two ports is reached."""

    def __init__(self, directory, zookeeper):
        secrets = directory / "secrets"
        authority = Authority(secrets)
        authority.issue("server")
        for name, password in PASSWORDS.items():
            (secrets / f"{name}.password").write_text(password)
            (secrets / f"{name}.password").chmod(0o600)
        self.secrets = secrets
        pairs = [ports_in_a_row(2) for _ in range(GATEWAYS)]
        self.gateways = [
            RollingGateway(directory, zookeeper, number, ports, secrets)
            for number, ports in enumerate(pairs, 1)
        ]
        self.plain = ",".join(each.bootstrap for each in self.gateways)
        self.secure = ",".join(f"127.0.0.1:{each.secure}" for each in self.gateways)
        login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
        trust = {"ssl.ca.location": str(authority.trusted)}
        user = {"sasl.username": "alice", "sasl.password": PASSWORDS["alice"]}
        self.before = Place(self.plain)
        self.after = Place(self.secure, {**login, **trust, **user})
        lines = {**login, **trust, "sasl.username": "admin"}
        lines["sasl.password"] = f"file:{secrets / 'admin.password'}"
        self.admin = secrets / "admin.properties"
        self.admin.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.admin.chmod(0o600)

    def start(self):
        for each in self.gateways:
            each.begin()
        for each in self.gateways:
            each.wait_started()

    def kill(self):
        for each in self.gateways:
            if each.running:
                each.kill()

    def roll(self, settings, between):
        """Restart each gateway with these settings; call `between` after each."""
        for each in self.gateways:
            each.settings = settings
            assert each.stop() == 0, each.output()[-3000:]
            each.begin()
            each.wait_started()
            between()

    def run(self, *words):
        """Run a command as the admin at the new listener."""
        words = (*words, "--command-config", str(self.admin))
        code, _, err = invoke(*words, bootstrap=self.secure)
        assert code == 0, err


@pytest.mark.proof
def test_the_change_from_plaintext_to_sasl_ssl_fails_no_request(tmp_path):
    with World(tmp_path, 3, proxied=False) as world:
        cluster, load = Cluster(tmp_path, world.zookeeper.servers), Load()
        try:
            cluster.start()
            create = ("topic", "create", TOPIC, "-p", str(PARTITIONS))
            assert invoke(*create, bootstrap=cluster.plain)[0] == 0
            for name in PASSWORDS:
                password = f"file:{cluster.secrets / name}.password"
                add = ("user", "add", name, "--password", password)
                assert invoke(*add, bootstrap=cluster.plain)[0] == 0
            load.start(cluster.before)
            change(cluster, load)
            load.finish()
            found = stored(cluster.after)
        finally:
            load.stop()
            cluster.kill()
    assert load.errors == []
    check(load, found)


def change(cluster, load):
    """Take all steps of the page."""
    step = steps()
    assert sorted(step) == [2, 4, 5, 7]

    def between():
        wait_more(load)

    between()
    settings = step[2]
    cluster.roll(settings, between)
    load.move(cluster.after, between)
    for number in (4, 5):
        settings = settings | step[number]
        cluster.roll(settings, between)
    for words in RIGHTS:
        cluster.run("acl", "add", "User:alice", *words.split())
    between()
    cluster.roll(settings | step[7], between)
    with pytest.raises(KafkaException):
        AdminClient(cluster.before.properties).list_topics(timeout=5.0)


def check(load, found):
    """Assert that each acknowledged record is there once, and that the group has read it."""
    missing = load.acknowledged - found.keys()
    doubled = [value for value, count in found.items() if count > 1]
    assert (missing, doubled) == (set(), [])
    for each in load.writers:
        assert len(each.acknowledged) > MORE
        assert each.acknowledged <= load.read


def wait_more(load):
    """Wait until each producer and the group have worked on, and members share the topic."""
    before = [len(each.acknowledged) for each in load.writers]
    read = len(load.read)

    def went_on():
        now = [len(each.acknowledged) for each in load.writers]
        return load.errors or all(a >= b + MORE for a, b in zip(now, before, strict=True))

    wait_until(went_on, "producers", WAIT_S)
    wait_until(lambda: load.errors or len(load.read) >= read + MORE, "readers", WAIT_S)
    wait_until(lambda: load.errors or load.is_whole(), "members", WAIT_S)
    assert load.errors == []
