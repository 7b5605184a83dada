"""Goal: the programs of a cluster prove who they are at ZooKeeper, by TLS, and refuse an open tree.

Method: settings in memory; then one real ZooKeeper that applies ACLs and has a port of TLS, with a
bookie and a gateway as processes, and the commands as users run them.
"""

import json
import subprocess

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from gateway.admin.zookeeper_access import access_of
from gateway.pipelines.direct.options import parse
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.storage import open_storage, read_topics
from gateway.process import serve
from gateway.settings.secret_paths import SECRET_PATHS
from ledger.command_line.program import flags_of
from ledger.command_line.zookeeper_settings import SetAcl
from ledger.errors import InvalidArgument
from ledger.node import checks
from ledger.node import serve as bookie_serve
from ledger.node.options import NodeSettings
from tests.gateway.admin_commands import invoke
from tests.ledger.authority import Authority
from tests.ledger.test_zookeeper_tls import keystore
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway
from tests.peers.zookeeper import ServerTls, ZooKeeper

CLUSTER = "cluster:marked-secret"
READER = "reader:marked-secret-2"


@pytest.fixture(scope="module")
def secret_files(tmp_path_factory):
    """Files with both identities, by name."""
    place = tmp_path_factory.mktemp("secrets")
    for text in (CLUSTER, READER):
        file = place / text.partition(":")[0]
        file.write_text(text + "\n")
        file.chmod(0o600)
    return place


# Settings


def gateway_faults(*words):
    words = ("--zookeeper", "z:1", *map(str, words))
    return serve.faults_of(serve.settings_of(flags_of(serve.serve, words)))


def bookie_faults(*words):
    words = ("--data", "/tmp/x-zookeeper-security", *map(str, words))
    return checks.offline_faults(NodeSettings(flags_of(bookie_serve.serve, words)))


@pytest.mark.parametrize("faults", [gateway_faults, bookie_faults], ids=["gateway", "bookie"])
def test_settings_that_need_each_other_name_what_is_missing(faults, secret_files):
    ca = secret_files / "cluster"
    assert faults("--zookeeper-read-auth", f"file:{secret_files}/reader") == [
        f"--zookeeper-read-auth file:{secret_files}/reader: needs --zookeeper-auth too"
    ]
    assert faults("--zookeeper-set-acl", "migrate") == [
        "--zookeeper-set-acl migrate: needs --zookeeper-auth too"
    ]
    assert faults("--zookeeper-ssl-truststore-location", ca) == [
        f"--zookeeper-ssl-truststore-location {ca}: needs --zookeeper-ssl-client-enable too"
    ]
    assert faults("--zookeeper-ssl-client-enable") == [
        "--zookeeper-ssl-client-enable: needs --zookeeper-ssl-truststore-location too"
    ]


@pytest.mark.parametrize("faults", [gateway_faults, bookie_faults], ids=["gateway", "bookie"])
def test_a_secret_is_checked_and_never_shown(faults, secret_files, tmp_path, monkeypatch):
    assert faults("--zookeeper-auth", f"file:{secret_files}/cluster") == []
    (shown,) = faults("--zookeeper-auth", "cluster:marked-secret")
    assert shown.startswith("--zookeeper-auth [hidden]: must be file:PATH or env:NAME")
    monkeypatch.setenv("IDENTITY", "marked-secret")
    (shown,) = faults("--zookeeper-auth", "env:IDENTITY")
    assert "the secret must be NAME:PASSWORD in one line" in shown
    assert "marked" not in shown
    loose = tmp_path / "loose"
    loose.write_text(CLUSTER)
    loose.chmod(0o640)
    (shown,) = faults("--zookeeper-auth", f"file:{loose}")
    assert shown.endswith(f"other users can read it; run chmod 600 {loose}")


def test_kafkas_keys_mean_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("IDENTITY", CLUSTER)
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    file = tmp_path / "server.properties"
    file.write_text(
        "zookeeper.connect=z:1\nzookeeper.set.acl=true\nzookeeper.ssl.client.enable=true\n"
        f"zookeeper.ssl.truststore.location={ca}\nzookeeper.auth=env:IDENTITY\n".replace(
            "zookeeper.auth", "zookeeper-auth"
        )
    )
    settings = serve.settings_of(flags_of(serve.serve, ("--config", str(file))))
    assert serve.faults_of(settings) == []
    found = serve.config_of(settings).zookeeper_security
    assert (found.set_acl, found.truststore) == (SetAcl.REQUIRED, ca)
    more = "zookeeper.ssl.keystore.type=PEM\nzookeeper.ssl.truststore.type=JKS\n"
    more += "zookeeper.ssl.endpoint.identification.algorithm=HTTPS\n"
    file.write_text(f"zookeeper.connect=z:1\n{more}")
    settings = serve.settings_of(flags_of(serve.serve, ("--config", str(file))))
    (fault,) = serve.faults_of(settings)
    assert "zookeeper.ssl.truststore.type: only PEM is read" in fault
    assert [each.rpartition("; ")[2] for each in settings.warnings] == [
        *("it is always PEM", "it is always HTTPS")
    ]
    file.write_text("zookeeper.connect=z:1\nzookeeper.set.acl=false\nzookeeper-auth=env:IDENTITY\n")
    settings = serve.settings_of(flags_of(serve.serve, ("--config", str(file))))
    assert serve.config_of(settings).zookeeper_security.set_acl is SetAcl.OFF


def test_commands_and_jobs_take_keys_or_variables(monkeypatch):
    monkeypatch.setenv("IDENTITY", READER)
    found = access_of({"zookeeper.auth": "env:IDENTITY"})
    assert (found.identity.name, found.set_acl) == ("reader", SetAcl.MIGRATE)
    assert found.secret_paths == SECRET_PATHS
    monkeypatch.setenv("GATEWAY_ZOOKEEPER_AUTH", "env:IDENTITY")
    assert access_of({}) == found
    monkeypatch.setenv("GATEWAY_ZOOKEEPER_AUTH", READER)
    with pytest.raises(InvalidArgument, match=r"^GATEWAY_ZOOKEEPER_AUTH: must be") as fault:
        access_of({})
    assert "marked" not in str(fault.value)
    options = {"metadata": "zk://z:1", "subscribe": "t"}
    read = parse({**options, "zookeeper.auth": "env:IDENTITY"})
    assert dict(read.storage.zookeeper) == {"zookeeper.auth": "env:IDENTITY"}
    with pytest.raises(JobError, match=r"^zookeeper.auth: must be file:PATH"):
        parse({**options, "zookeeper.auth": READER})


# Processes


class Site:
    """A closed cluster on a ZooKeeper that clients reach by TLS alone."""

    def __init__(self, directory, secret_files):
        authority = Authority(directory / "authority", "ours")
        ca = authority.path / "ca.pem"
        server = keystore(authority.files("zookeeper"))
        own = keystore(authority.files("gateway"))
        self.server = ZooKeeper(
            directory / "zookeeper", applies_acls=True, tls=ServerTls(server, ca)
        )
        self.tls = {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(ca),
            "zookeeper.ssl.keystore.location": str(own),
        }
        self.tls_words = [
            "--zookeeper-ssl-client-enable",
            *("--zookeeper-ssl-truststore-location", str(ca)),
            *("--zookeeper-ssl-keystore-location", str(own)),
        ]
        self.words = [
            *self.tls_words,
            *("--zookeeper-auth", f"file:{secret_files}/cluster"),
            *("--zookeeper-read-auth", f"file:{secret_files}/reader"),
        ]
        cluster = {"zookeeper.auth": f"file:{secret_files}/cluster"}
        self.reads = {**self.tls, "zookeeper.auth": f"file:{secret_files}/reader"}
        both = {**cluster, "zookeeper.read.auth": f"file:{secret_files}/reader"}
        self.admin = self._file(directory / "admin.properties", {**self.tls, **both})
        self.reader = self._file(directory / "reader.properties", self.reads)
        self.servers = f"{self.server.secure_servers}/kafka"
        self.bookie = BookieProcess(directory / "bookie", self.servers, self.words)
        self.gateway = ClusterGateway(
            directory / "gateway", self.servers, [*self.words, "--replication-factor", "1"]
        )

    @staticmethod
    def _file(file, keys):
        file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        return str(file)

    def client(self, identity=""):
        """Return a client of the plain port, which the tests alone use."""
        auth = [("digest", identity)] if identity else []
        client = KazooClient(self.server.servers, auth_data=auth)
        client.start(60)
        return client


@pytest.fixture(scope="module")
def site(tmp_path_factory, secret_files):
    made = Site(tmp_path_factory.mktemp("site"), secret_files)
    with made.server, made.bookie, made.gateway:
        yield made


def ended(*words, timeout_s=60):
    """Return the exit code and the stderr of a server that must not start."""
    argv = [install.gateway_python(), "-m", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
    return done.returncode, done.stderr


@pytest.mark.process
def test_a_closed_cluster_by_tls_serves_and_the_world_reads_nothing(site):
    assert invoke("topic", "create", "t", bootstrap=site.gateway.bootstrap)[0] == 0
    user = ("user", "bootstrap", "alice", "--password", "env:PASSWORD", "-z", site.servers)
    client = site.client()
    try:
        for path in ("/kafka", "/kafka/ledgers", "/kafka/gateway"):
            with pytest.raises(NoAuthError):
                client.get_children(path)
    finally:
        client.stop()
        client.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PASSWORD", "alices")
        code, _, err = invoke(*user, "--command-config", site.reader)
        assert (code, "refuses this process" in err) == (77, True)
        assert invoke(*user, "--command-config", site.admin)[0] == 0
    reader, admin = site.client(READER), site.client(CLUSTER)
    try:
        found = [f"/gateway/{name}" for name in reader.get_children("/kafka/gateway")]
        secret = set(SECRET_PATHS).intersection(found)
        assert SECRET_PATHS[0] in secret
        for path in secret:
            with pytest.raises(NoAuthError):
                reader.get_children(f"/kafka{path}")
        users = admin.get_children(f"/kafka{SECRET_PATHS[0]}")
        assert users
        for user in users:
            with pytest.raises(NoAuthError):
                reader.get(f"/kafka{SECRET_PATHS[0]}/{user}")
    finally:
        for each in (reader, admin):
            each.stop()
            each.close()


@pytest.mark.process
def test_commands_that_read_need_the_readers_identity_alone(site):
    at = ("-z", site.servers, "--command-config")
    for words in (("ledger", "list"), ("bookie", "list")):
        assert invoke(*words, *at, site.reader)[0] == 0
    check = ("security", "zookeeper", "-z", site.servers, "--command-config")
    code, out, _ = invoke(*check, site.admin, "--check", "-o", "json")
    found = json.loads(out)
    assert (code, found["left"], found["paths"]) == (0, 0, []), found
    assert found["nodes"] > 10
    code, _, err = invoke("security", "zookeeper", "-z", site.servers, "--check")
    assert (code, "zookeeper.auth is missing" in err) == (78, True)
    assert invoke(*check, site.admin)[0] == 2


@pytest.mark.process
@pytest.mark.real_loop
async def test_jobs_read_topics_by_the_readers_identity(site):
    async with open_storage(f"zk://{site.servers}", zookeeper=site.reads, connect_s=20) as storage:
        assert isinstance(await read_topics(storage.store), list)
    with pytest.raises(JobError, match="set zookeeper-auth"):
        async with open_storage(f"zk://{site.servers}", zookeeper=site.tls, connect_s=20):
            pass


@pytest.mark.process
def test_a_server_without_the_identity_is_refused(site, tmp_path):
    place = ("--zookeeper", site.servers, *site.tls_words)
    for words in (
        ("gateway", "serve", "--port", "0", "--node-id", "9", *place),
        ("ledger", "serve", "--port", "0", "--data", str(tmp_path / "bookie"), *place),
        ("ledger", "audit", *place),
    ):
        code, err = ended(*words)
        assert (code, err.count("\n")) == (78, 1), err
        assert "set zookeeper-auth to an identity that the ACL names" in err


@pytest.mark.process
def test_an_open_node_keeps_every_server_from_starting_until_it_is_repaired(site, tmp_path):
    client = site.client(CLUSTER)
    client.set_acls("/kafka/ledgers", OPEN_ACL_UNSAFE)
    client.stop()
    client.close()
    place = ("--zookeeper", site.servers, *site.words)
    servers = (
        ("gateway", "serve", "--port", "0", "--node-id", "9", *place),
        ("ledger", "serve", "--port", "0", "--data", str(tmp_path / "bookie"), *place),
        ("ledger", "audit", *place),
    )
    for words in servers:
        code, err = ended(*words)
        assert (code, err.count("\n")) == (78, 1), err
        assert "node /kafka/ledgers is open to world:anyone; run `gateway security" in err
        assert "marked" not in err
    check = ("security", "zookeeper", "-z", site.servers, "--command-config", site.admin)
    code, out, _ = invoke(*check, "--check", "-o", "json")
    assert code == 1
    assert json.loads(out)["paths"] == [{"path": "/kafka/ledgers", "state": "open"}]
    code, out, _ = invoke(*check, "--apply")
    assert (code, "1 of " in out) == (0, True)
    assert invoke(*check, "--check")[0] == 0


@pytest.mark.process
def test_no_secret_stands_in_outputs_settings_or_words_of_processes(site):
    place = ("--zookeeper", site.servers, *site.words)
    argv = [install.gateway_python(), "-m", "gateway", "serve", *place, "--print-config"]
    printed = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
    assert "/cluster" in printed
    shown = [printed, site.gateway.output(), site.bookie.output()]
    for process in (site.gateway.process, site.bookie.process):
        with open(f"/proc/{process.pid}/cmdline") as words:
            shown.append(words.read())
    assert "marked" not in "".join(shown)
