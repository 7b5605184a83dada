"""Goal: the lines that `gateway dev --secure` prints connect stock clients, and nothing else does.

Method: one process; kcat, Apache Kafka's own tools, aiokafka and our commands, each as its line
says. A wrong password and a client without one are refused, and a second start knows the first.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import ssl
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.peers import install, java_tools
from tests.peers.processes import Process

pytestmark = [pytest.mark.compat, pytest.mark.process]
WAIT_S = 60.0
PORTS = ("--port", "0", "--http-port", "0", "--group-initial-rebalance-delay", "0s")


class Started:
    """A process with the lines that it printed, by their first word."""

    def __init__(self, data):
        self.place = data / "secure"
        argv = [install.gateway_python(), "-m", "gateway", "dev", "--secure", *PORTS]
        self.process = Process([*argv, "--data", str(data)], data.with_name("log"))
        self.process.wait_for(lambda: "\ngateway: " in self.output(), "its lines", WAIT_S)
        found = re.findall(r"^(\w+): (.+)$", self.output(), re.MULTILINE)
        self.lines = dict(found)
        self.server = re.search(r"bootstrap\.servers=(\S+)", self.output())[1]

    def output(self):
        return self.process.output()

    def words(self, line):
        return shlex.split(self.lines[line])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """The second start in a directory, so that all clients use the files of the first one."""
    data = tmp_path_factory.mktemp("secure") / "data"
    first = Started(data)
    made = {each.name: each.read_bytes() for each in first.place.iterdir()}
    first.process.stop(WAIT_S)
    started = Started(data)
    started.made_by_first = made
    yield started
    started.process.stop(WAIT_S)
    password = (started.place / "admin.password").read_text().strip()
    assert password not in started.output()
    assert "Traceback" not in started.output()


def kcat(gateway, *words, stdin=b""):
    program, *given = gateway.words("librdkafka")
    assert program == "kcat"
    argv = [install.kcat(), *given[: given.index("-L")], *words]
    return subprocess.run(argv, input=stdin, capture_output=True, timeout=WAIT_S)


def test_kcat_writes_and_reads_by_its_line(gateway):
    assert b"1 brokers" in kcat(gateway, "-L").stdout
    assert kcat(gateway, "-P", "-t", "of-kcat", stdin=b"value\n").returncode == 0
    read = kcat(gateway, "-C", "-t", "of-kcat", "-e", "-o", "beginning")
    assert read.stdout == b"value\n", read.stderr


def test_kafkas_own_tools_connect_by_their_line(gateway):
    program, *words = gateway.words("java")
    assert program == "kafka-topics.sh"
    place = words[: words.index("--list")]
    java_tools.run(java_tools.TOPICS, *place, "--create", "--topic", "of-java")
    assert "of-java" in java_tools.run(java_tools.TOPICS, *words).splitlines()
    java_tools.run(java_tools.CONSOLE_PRODUCER, *place, "--topic", "of-java", stdin="one\n")
    read = ("--topic", "of-java", "--from-beginning", "--max-messages", "1")
    assert java_tools.run(java_tools.CONSOLE_CONSUMER, *place, *read).splitlines()[:1] == ["one"]


def test_aiokafka_connects_by_its_line(gateway):
    written = gateway.lines["aiokafka"]
    assert written.startswith("AIOKafkaProducer(")

    async def run():
        async with eval(written) as producer:
            await producer.send_and_wait("of-aiokafka", b"value")
        words = written.removeprefix("AIOKafkaProducer(")
        code = f"AIOKafkaConsumer('of-aiokafka', auto_offset_reset='earliest', {words}"
        async with eval(code) as consumer:
            return (await asyncio.wait_for(consumer.getone(), WAIT_S)).value

    assert {AIOKafkaProducer, AIOKafkaConsumer, ssl} and asyncio.run(run()) == b"value"


def test_our_commands_connect_by_their_line(gateway):
    program, *words = gateway.words("gateway")
    assert program == "gateway"
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *words], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr


def test_the_doctor_asks_each_gateway_with_the_login_of_its_line(gateway, tmp_path):
    """Without it, each gateway would look like a broker of Apache Kafka."""
    _, *words = gateway.words("gateway")
    login = words[words.index("-b") :]
    bundle = tmp_path / "doctor.tar.gz"
    checks = ("versions", "files", "settings", "zookeeper")
    only = [word for check in checks for word in ("--only", check)]
    argv = ["gateway", "doctor", "-o", "json", "--bundle", str(bundle), *only, *login]
    done = subprocess.run(
        [sys.executable, "-m", *argv], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    assert [rows[each]["state"] for each in checks] == ["ok", "ok", "ok", "unknown"]
    assert "gateway 0 may open" in rows["files"]["finding"]
    assert rows["zookeeper"]["finding"].startswith("the server does not say where its ledgers are")
    with tarfile.open(bundle) as archive:
        settings = json.load(archive.extractfile("doctor/settings/brokers.json"))
    assert settings["0"]["node.id"] == "0"


def test_a_wrong_password_is_refused(gateway, tmp_path):
    errors = []
    settings = {
        "bootstrap.servers": gateway.server,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(gateway.place / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": "wrong",
        "log_level": 0,
    }
    client = AdminClient({**settings, "error_cb": errors.append})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3.0)
    client.poll(1.0)
    assert "_AUTHENTICATION" in {each.name() for each in errors}
    file = tmp_path / "client.properties"
    text = (gateway.place / "client.properties").read_text()
    file.write_text(re.sub(r'password=".*?"', 'password="wrong"', text))
    file.chmod(0o600)
    words = ("--bootstrap-server", gateway.server, "--command-config", str(file), "--list")
    with pytest.raises(java_tools.ToolFailed, match="invalid credentials"):
        java_tools.run(java_tools.TOPICS, *words)


def test_a_client_without_a_login_is_refused(gateway):
    """In plain text, and in TLS without SASL."""
    for settings in ({}, {"security.protocol": "SSL", "ssl.ca.location": gateway.place / "ca.pem"}):
        texts = {name: str(value) for name, value in settings.items()}
        client = AdminClient({"bootstrap.servers": gateway.server, "log_level": 0, **texts})
        with pytest.raises(KafkaException):
            client.list_topics(timeout=2.0)

    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=gateway.server, request_timeout_ms=2_000)
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(KafkaError):
        asyncio.run(run())


def test_a_server_that_the_authority_did_not_sign_for_is_refused(gateway, tmp_path):
    """A client that trusts another authority ends the handshake."""
    words = ["gateway", "topic", "list", "-b", gateway.server, "--command-config"]
    text = (gateway.place / "client.properties").read_text()
    lines = [each for each in text.splitlines() if not each.startswith("ssl.truststore")]
    file = tmp_path / "client.properties"
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-m", *words, str(file)], capture_output=True, text=True, timeout=WAIT_S
    )
    assert (done.returncode, "certificate" in done.stderr.lower()) != (0, False), done


def test_there_is_no_side_door(gateway):
    """No port of ledgers, and the page asks for the password."""
    assert "ledgers" not in gateway.lines
    address = "http:" + re.search(r"^page: http:(\S+)$", gateway.output(), re.MULTILINE)[1]
    for path in ("", "api/v1/topics", "metrics"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address + path, timeout=WAIT_S)
        assert refused.value.code == 401
        refused.value.close()
    manager = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    password = (gateway.place / "admin.password").read_text().strip()
    manager.add_password(None, address, "admin", password)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
    with opener.open(f"{address}api/v1/topics", timeout=WAIT_S) as answer:
        assert answer.status == 200


def test_a_second_start_uses_the_files_of_the_first(gateway):
    assert {each.name: each.read_bytes() for each in gateway.place.iterdir()} == (
        gateway.made_by_first
    )
