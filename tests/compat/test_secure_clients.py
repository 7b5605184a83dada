"""Goal: stock clients, unchanged, connect by TLS, a certificate and each mechanism of SASL, and our
own commands too; with a wrong password none does.

Method: one `gateway dev` with a listener for each protocol; its users are added by the commands;
librdkafka, aiokafka and Apache Kafka's own tools. Certificates are reloaded under a connection.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.gateway.pki import Authority, name_of
from tests.peers import java_tools
from tests.peers.gateway import Gateway
from tests.peers.processes import ports_in_a_row

pytestmark = [pytest.mark.compat, pytest.mark.process, pytest.mark.proof]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT")
PASSWORD = "marked-secret-7Qz"
WAIT_S = 60.0


class SecureGateway(Gateway):
    """An embedded gateway with a listener for each protocol."""

    def __init__(self, data, authority):
        super().__init__(data)
        self.authority = authority
        first, *others = ports_in_a_row(len(PROTOCOLS))
        self.port = first
        self.ports = dict(zip(PROTOCOLS, (first, *others), strict=True))

    def at(self, protocol):
        return f"127.0.0.1:{self.ports[protocol]}"

    def argv(self):
        words = [sys.executable, "-m", "gateway", "dev", "--data", str(self.data)]
        words += ["--no-http-port", "--no-ledger-port", "--group-initial-rebalance-delay", "0s"]
        for protocol, port in self.ports.items():
            words += ["--listener", f"{protocol}=127.0.0.1:{port}"]
        for mechanism in MECHANISMS:
            words += ["--sasl-enabled-mechanisms", mechanism]
        words += ["--ssl-keystore-location", str(self.authority.path / "server.pem")]
        words += ["--ssl-truststore-location", str(self.authority.trusted)]
        return [*words, "--ssl-client-auth", "requested"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    made.issue("server")
    _, _, made.client_file = made.issue(
        name_of(
            ("COUNTRY_NAME", "DE"), ("ORGANIZATION_NAME", "Org, Inc"), ("COMMON_NAME", "client")
        )
    )
    return made


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, authority):
    with SecureGateway(tmp_path_factory.mktemp("secure") / "data", authority) as started:
        done = command(
            "user", "add", "alice", "--password", "env:MARKED", "-b", started.at("PLAINTEXT")
        )
        assert done.returncode == 0, done.stderr
        yield started
        assert PASSWORD not in started.output()
        assert "Traceback" not in started.output()


def command(*words, **variables):
    environment = {**os.environ, "MARKED": PASSWORD, **variables}
    words = [sys.executable, "-m", "gateway", *words]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


def of_librdkafka(gateway, protocol, mechanism, password=PASSWORD):
    return {
        "bootstrap.servers": gateway.at(protocol),
        "security.protocol": protocol,
        "ssl.ca.location": str(gateway.authority.trusted),
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
        "log_level": 0,
    }


def of_java(gateway, protocol, mechanism, directory, password=PASSWORD):
    """Return a file as Kafka's tools take it."""
    kind = "scram.Scram" if mechanism.startswith("SCRAM") else "plain.Plain"
    lines = [
        f"security.protocol={protocol}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={gateway.authority.trusted}",
        f"sasl.mechanism={mechanism}",
        f"sasl.jaas.config=org.apache.kafka.common.security.{kind}LoginModule required "
        f'username="alice" password="{password}";',
    ]
    file = directory / "client.properties"
    file.write_text("\n".join(lines))
    file.chmod(0o600)
    return str(file)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_writes_and_reads_by_each_mechanism(gateway, mechanism):
    topic, settings = f"rd-{mechanism}", of_librdkafka(gateway, "SASL_SSL", mechanism)
    producer = Producer(settings)
    producer.produce(topic, b"value")
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        assert consumer.poll(WAIT_S).value() == b"value"
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_with_a_wrong_password_is_refused(gateway, mechanism):
    errors = []
    settings = of_librdkafka(gateway, "SASL_SSL", mechanism, "wrong")
    client = AdminClient({**settings, "error_cb": errors.append})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3.0)
    client.poll(1.0)
    assert "_AUTHENTICATION" in {each.name() for each in errors}


def test_plain_without_tls_is_not_offered_to_librdkafka(gateway):
    client = AdminClient(of_librdkafka(gateway, "SASL_PLAINTEXT", "PLAIN"))
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3.0)
    settings = of_librdkafka(gateway, "SASL_PLAINTEXT", "SCRAM-SHA-256")
    assert AdminClient(settings).list_topics(timeout=WAIT_S).brokers


def test_a_certificate_of_a_client_is_taken(gateway, authority):
    text = authority.client_file.read_text()
    cut = text.index("-----BEGIN CERT")
    settings = {
        "bootstrap.servers": gateway.at("SSL"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.trusted),
        "ssl.key.pem": text[:cut],
        "ssl.certificate.pem": text[cut:],
    }
    assert AdminClient(settings).list_topics(timeout=WAIT_S).brokers


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_writes_and_reads_and_a_wrong_password_is_refused(gateway, mechanism):
    def settings(password):
        return {
            "bootstrap_servers": gateway.at("SASL_SSL"),
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=str(gateway.authority.trusted)),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": password,
        }

    async def run():
        topic = f"aio-{mechanism}"
        async with AIOKafkaProducer(**settings(PASSWORD)) as producer:
            await producer.send_and_wait(topic, b"value")
        options = {"group_id": "aio", "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer(topic, **options, **settings(PASSWORD)) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"value"
        wrong = AIOKafkaProducer(**settings("wrong"))
        with pytest.raises(KafkaError):
            await wrong.start()
        await wrong.stop()

    asyncio.run(run())
    assert gateway.running


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafkas_own_tools_connect_by_each_mechanism(gateway, mechanism, tmp_path):
    config, topic = of_java(gateway, "SASL_SSL", mechanism, tmp_path), f"java-{mechanism}"
    place = ("--bootstrap-server", gateway.at("SASL_SSL"))
    words = (*place, "--command-config", config)
    java_tools.run(java_tools.TOPICS, *words, "--create", "--topic", topic)
    words = (*place, "--command-config", config, "--topic", topic)
    java_tools.run(java_tools.CONSOLE_PRODUCER, *words, stdin="one\ntwo\n")
    words = (*place, "--command-config", config, "--topic", topic, "--from-beginning")
    found = java_tools.run(java_tools.CONSOLE_CONSUMER, *words, "--max-messages", "2")
    assert found.splitlines()[:2] == ["one", "two"]


def test_kafkas_own_tools_report_a_wrong_password(gateway, tmp_path):
    config = of_java(gateway, "SASL_SSL", "SCRAM-SHA-512", tmp_path, "wrong")
    words = ("--bootstrap-server", gateway.at("SASL_SSL"), "--command-config", config, "--list")
    with pytest.raises(
        java_tools.ToolFailed, match="invalid credentials with SASL mechanism SCRAM"
    ):
        java_tools.run(java_tools.TOPICS, *words)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_commands_take_kafkas_client_keys(gateway, mechanism, tmp_path):
    config = of_java(gateway, "SASL_SSL", mechanism, tmp_path)
    words = ("user", "list", "-o", "csv", "-b", f"localhost:{gateway.ports['SASL_SSL']}")
    done = command(*words, "--command-config", config)
    assert done.returncode == 0, done.stderr
    assert "alice,SCRAM-SHA-512,8192" in done.stdout
    wrong = of_java(gateway, "SASL_SSL", mechanism, tmp_path, "wrong")
    done = command(*words, "--command-config", wrong)
    assert (done.returncode, len(done.stderr.splitlines())) == (77, 1)
    (tmp_path / "client.properties").chmod(0o644)
    done = command(*words, "--command-config", wrong)
    assert (done.returncode, "run chmod 600" in done.stderr) == (78, True)


def test_our_commands_write_and_read_records_over_tls_and_sasl(gateway, tmp_path):
    config = of_java(gateway, "SASL_SSL", "SCRAM-SHA-512", tmp_path)
    place = ("-b", f"localhost:{gateway.ports['SASL_SSL']}", "--command-config", config)
    made = command("topic", "create", "ours", *place)
    assert made.returncode == 0, made.stderr
    words = [sys.executable, "-m", "gateway", "topic", "produce", "ours", *place]
    sent = subprocess.run(words, input="a\nb\n", capture_output=True, text=True, timeout=60)
    assert sent.returncode == 0, sent.stderr
    read = command("topic", "consume", "ours", "-n", "2", "--from", "start", *place)
    assert [line.split()[-1] for line in read.stdout.splitlines()[-2:]] == ["a", "b"], read


def test_a_certificate_is_reloaded_and_a_connection_stays(gateway, authority):
    def connect():
        context = ssl.create_default_context(cafile=str(authority.trusted))
        raw = socket.create_connection(("127.0.0.1", gateway.ports["SSL"]), timeout=WAIT_S)
        return context.wrap_socket(raw, server_hostname="127.0.0.1")

    first = connect()
    before = first.getpeercert()["serialNumber"]
    authority.issue("server")
    gateway.process.send_signal(signal.SIGHUP)
    gateway.process.wait_output("certificates were reloaded", WAIT_S)
    with connect() as second:
        assert second.getpeercert()["serialNumber"] != before
    first.sendall(bytes.fromhex("0000000f001200000000000700056162636465"))
    assert first.recv(8)[4:] == (7).to_bytes(4, "big")
    first.close()


def test_a_deleted_user_is_cut_off_within_seconds(gateway):
    place = ("-b", gateway.at("PLAINTEXT"))
    done = command("user", "add", "bob", "--password", "env:MARKED", *place)
    assert done.returncode == 0, done.stderr
    settings = of_librdkafka(gateway, "SASL_SSL", "SCRAM-SHA-512") | {"sasl.username": "bob"}
    client = AdminClient(settings)
    assert client.list_topics(timeout=WAIT_S).brokers
    done = command("user", "delete", "bob", "--yes", *place)
    assert done.returncode == 0, done.stderr
    gateway.process.wait_output("its user was deleted or changed", WAIT_S)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3.0)


def test_the_first_user_is_written_to_a_stopped_gateway(tmp_path, authority):
    data = tmp_path / "data"
    words = ("user", "bootstrap", "admin", "--password", "env:MARKED", "--data", str(data))
    assert command(*words).returncode == 78
    with Gateway(data):
        assert data.exists()
    done = command(*words)
    assert done.returncode == 0, done.stderr
    with SecureGateway(data, authority) as again:
        settings = of_librdkafka(again, "SASL_SSL", "SCRAM-SHA-512") | {"sasl.username": "admin"}
        assert AdminClient(settings).list_topics(timeout=WAIT_S).brokers
