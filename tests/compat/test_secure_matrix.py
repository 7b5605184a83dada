"""Goal: each stock client, unchanged, writes and reads by each mechanism and by a certificate; a
wrong password and a missing right are refused; a session that ends is renewed.

Method: one `gateway dev` from a file with Kafka's keys, with an authorizer, a listener whose
sessions last two seconds by `listener.name.*`, and the keys of an issuer of tokens. Java 4.3 and
3.9, librdkafka, aiokafka, kafka-python, kafkajs, and our own commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import subprocess
import sys
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients.with_kafka_python import (
    KafkaConsumer,
    KafkaProducer,
    TokenProvider,
    TopicPartition,
)
from tests.gateway.issuer import AUDIENCE, ISSUER, Issuer
from tests.gateway.pki import Authority
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.java_tools import JVM_SHORT
from tests.peers.kafka import JVM_QUIET
from tests.peers.processes import ports_in_a_row

pytestmark = [pytest.mark.compat, pytest.mark.process, pytest.mark.proof]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "TLS": "SSL",
    "CERTIFICATE": "SSL",
    "LOGIN": "SASL_SSL",
    "SHORT": "SASL_SSL",
}
PASSWORD = "marked-secret-7Qz"
WAIT_S = 60.0
SHORT_S, WRITES_S = 2, 5
CLOSED = "closed"  # the topic that only the admin may use
KAFKAJS, OLDER = "2.2.4", "3.9.1"
JAVA_S_MAX = 240
REAUTHENTICATES = "SHORT"


class MatrixGateway(Gateway):
    """An embedded gateway as a file with Kafka's keys makes it."""

    def __init__(self, directory, authority):
        super().__init__(directory / "data")
        self.directory, self.authority = directory, authority
        self.ports = dict(zip(LISTENERS, ports_in_a_row(len(LISTENERS)), strict=True))
        self.port = self.ports["PLAINTEXT"]

    def at(self, listener):
        return f"localhost:{self.ports[listener]}"

    def argv(self):
        here = self.authority.path
        lines = {
            "listeners": ",".join(f"{k}://127.0.0.1:{port}" for k, port in self.ports.items()),
            "advertised.listeners": ",".join(
                f"{name}://localhost:{port}" for name, port in self.ports.items()
            ),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in LISTENERS.items()
            ),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "ssl.keystore.location": here / "server.pem",
            "ssl.truststore.location": self.authority.trusted,
            "listener.name.certificate.ssl.client.auth": "required",
            "listener.name.certificate.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/L",
            "listener.name.short.connections.max.reauth.ms": SHORT_S * 1000,
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{here / 'jwks.json'}",
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "authorizer": "standard",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
            "group.initial.rebalance.delay.ms": 0,
        }
        file = self.directory / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        words = [install.gateway_python(), "-m", "gateway", "dev", "--data", str(self.data)]
        return [*words, "--no-http-port", "--no-ledger-port", "--config", str(file)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return certified(tmp_path_factory.mktemp("pki") / "ca")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, authority):
    with matrix(tmp_path_factory.mktemp("matrix"), authority) as started:
        yield started


def certified(directory):
    """Return an authority with the files of the gateway, of a client, and of tokens."""
    made, issuer = Authority(directory), Issuer()
    made.issue("server")
    made.issue("Client")
    (made.path / "jwks.json").write_bytes(issuer.jwks())
    for name, token in (("token", issuer.token()), ("expired", issuer.token(exp=1))):
        (made.path / name).write_text(token)
        (made.path / name).chmod(0o600)
    return made


@contextlib.contextmanager
def matrix(directory, authority):
    """Start the gateway, with the user alice and the closed topic. Look at its log at the end."""
    with MatrixGateway(directory, authority) as started:
        admin = AdminClient({"bootstrap.servers": started.at("PLAINTEXT")})
        for each in admin.create_topics([NewTopic(CLOSED, 1, 1)]).values():
            each.result(WAIT_S)
        done = command("user", "add", "alice", "--password", "env:MARKED", "-b", started.bootstrap)
        assert done.returncode == 0, done.stderr
        words = ("acl", "add", "User:admin", "all", f"topic:{CLOSED}")
        done = command(*words, "-b", started.bootstrap)
        assert done.returncode == 0, done.stderr
        yield started
        assert PASSWORD not in started.output()
        assert "Traceback" not in started.output()


def command(*words):
    environment = {**os.environ, "MARKED": PASSWORD}
    words = [sys.executable, "-m", "gateway", *words]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


def token_of(authority, password):
    return (authority.path / ("token" if password == PASSWORD else "expired")).read_text()


# -- librdkafka ------------------------------------------------------------------------------------


def of_librdkafka(gateway, mechanism, password=PASSWORD, listener="LOGIN"):
    keys = {
        "bootstrap.servers": gateway.at(listener),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(gateway.authority.trusted),
        "sasl.mechanism": mechanism,
        "log_level": 0,
    }
    if mechanism == "OAUTHBEARER":
        token = token_of(gateway.authority, password)
        return keys | {"oauth_cb": lambda _: (token, time.time() + 300)}
    return keys | {"sasl.username": "alice", "sasl.password": password}


def delivered(settings, topic, seconds=0.0):
    """Write for this time. Returns the errors of deliveries, and their number."""
    errors, count, end = [], 0, time.monotonic() + seconds
    producer = Producer({**settings, "message.timeout.ms": 60_000})
    while True:
        producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
        count += 1
        producer.poll(0.1)
        if time.monotonic() >= end:
            break
    producer.flush(WAIT_S)
    return [each for each in errors if each is not None], count


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_by_each_mechanism(gateway, mechanism):
    topic, settings = f"rd-{mechanism}", of_librdkafka(gateway, mechanism)
    assert delivered(settings, topic) == ([], 1)
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        assert consumer.poll(WAIT_S).value() == b"value"
    finally:
        consumer.close()
    (denied,), _ = delivered(settings, CLOSED)
    assert denied.name() == "TOPIC_AUTHORIZATION_FAILED"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_with_a_wrong_password_or_token(gateway, mechanism):
    errors = []
    settings = of_librdkafka(gateway, mechanism, "wrong") | {"error_cb": errors.append}
    client = AdminClient(settings)
    client.poll(1.0)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=4.0)
    client.poll(1.0)
    assert "_AUTHENTICATION" in {each.name() for each in errors}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_renews_its_session(gateway, mechanism):
    settings = of_librdkafka(gateway, mechanism, listener=REAUTHENTICATES)
    errors, count = delivered(settings, f"rd-again-{mechanism}", WRITES_S)
    assert errors == []
    assert count > 10


def test_librdkafka_by_a_certificate(gateway, authority):
    text = (authority.path / "Client.pem").read_text()
    cut = text.index("-----BEGIN CERT")
    settings = {
        "bootstrap.servers": gateway.at("CERTIFICATE"),
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.trusted),
        "log_level": 0,
    }
    own = {"ssl.key.pem": text[:cut], "ssl.certificate.pem": text[cut:]}
    assert delivered(settings | own, "rd-certificate") == ([], 1)
    (denied,), _ = delivered(settings | own, CLOSED)
    assert denied.name() == "TOPIC_AUTHORIZATION_FAILED"
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=3.0)


# -- aiokafka and kafka-python ---------------------------------------------------------------------


class _Token(AbstractTokenProvider):
    def __init__(self, token):
        self._token = token

    async def token(self):
        return self._token


class _PythonToken(TokenProvider):
    def __init__(self, token):
        super().__init__()
        self._token = token

    def token(self):
        return self._token


def of_python(gateway, mechanism, password=PASSWORD, listener="LOGIN"):
    return {
        "bootstrap_servers": gateway.at(listener),
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(gateway.authority.trusted)),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
    }


def of_aiokafka(gateway, mechanism, password=PASSWORD, listener="LOGIN"):
    settings = of_python(gateway, mechanism, password, listener)
    if mechanism == "OAUTHBEARER":
        provider = _Token(token_of(gateway.authority, password))
        settings |= {"sasl_oauth_token_provider": provider}
    return settings


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_by_each_mechanism(gateway, mechanism):
    async def run():
        topic, settings = f"aio-{mechanism}", of_aiokafka(gateway, mechanism)
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"value")
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait(CLOSED, b"value")
        options = {"group_id": topic, "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer(topic, **options, **settings) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), WAIT_S)).value == b"value"
        wrong = AIOKafkaProducer(**of_aiokafka(gateway, mechanism, "wrong"))
        with pytest.raises(KafkaError):
            await wrong.start()
        await wrong.stop()
        return True

    assert asyncio.run(run())


def test_aiokafka_connects_again_when_its_session_ends(gateway):
    async def run():
        settings = of_aiokafka(gateway, "SCRAM-SHA-512", listener=REAUTHENTICATES)
        count, end = 0, time.monotonic() + WRITES_S
        async with AIOKafkaProducer(**settings) as producer:
            while time.monotonic() < end:
                await producer.send_and_wait("aio-again", b"value")
                count += 1
                await asyncio.sleep(0.1)
        return count

    assert asyncio.run(run()) > 10


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_by_each_mechanism(gateway, mechanism):
    def settings(password):
        found = of_python(gateway, mechanism, password)
        if mechanism == "OAUTHBEARER":
            token = token_of(gateway.authority, password)
            found |= {"sasl_oauth_token_provider": _PythonToken(token)}
        return found

    topic = f"py-{mechanism}"
    producer = KafkaProducer(**settings(PASSWORD))
    producer.send(topic, b"value").get(WAIT_S)
    with pytest.raises(Exception, match="TopicAuthorizationFailed"):
        producer.send(CLOSED, b"value").get(WAIT_S)
    producer.close()
    reader = KafkaConsumer(**settings(PASSWORD))
    place = TopicPartition(topic, 0)
    reader.assign([place])
    reader.seek_to_beginning(place)
    try:
        found = reader.poll(int(WAIT_S * 1000))
        assert [each.value for each in found[place]] == [b"value"]
    finally:
        reader.close()
    with pytest.raises(Exception, match=r"Authentication|NoBrokersAvailable|Timeout"):
        KafkaProducer(**settings("wrong"), max_block_ms=3_000).send(topic, b"x").get(3.0)


# -- Java ------------------------------------------------------------------------------------------


def java_keys(gateway, mechanism, password, listener):
    """Return the lines of a client.properties."""
    kinds = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}
    kind = kinds.get(mechanism, "scram.Scram")
    module = f"org.apache.kafka.common.security.{kind}LoginModule required"
    keys = {
        "bootstrap.servers": gateway.at(listener),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": gateway.authority.trusted,
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        name = "token" if password == PASSWORD else "expired"
        handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        keys["sasl.jaas.config"] = f"{module};"
        keys["sasl.login.callback.handler.class"] = handler
        keys["sasl.oauthbearer.token.endpoint.url"] = f"file://{gateway.authority.path / name}"
    else:
        keys["sasl.jaas.config"] = f'{module} username="alice" password="{password}";'
    return keys


def certificate_keys(gateway):
    return {
        "bootstrap.servers": gateway.at("CERTIFICATE"),
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": gateway.authority.trusted,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": gateway.authority.path / "Client.pem",
    }


def java_cases(gateway, version):
    """Return the client.properties of each case with what it prints."""
    refused = "SaslAuthenticationException"
    denied = "TopicAuthorizationException"
    cases = {}
    for name in MECHANISMS:
        good = java_keys(gateway, name, PASSWORD, "LOGIN")
        cases[f"good-{name}"] = good, "read 1"
        cases[f"denied-{name}"] = good | {"test.topic": CLOSED}, denied
        bad = java_keys(gateway, name, "wrong", "LOGIN")
        # Java checks the time of its own token first.
        cases[f"wrong-{name}"] = bad, refused if name != "OAUTHBEARER" else None
    again = java_keys(gateway, "SCRAM-SHA-256", PASSWORD, REAUTHENTICATES)
    cases["again"] = again | {"test.seconds": WRITES_S}, "read more"
    tokens = java_keys(gateway, "OAUTHBEARER", PASSWORD, REAUTHENTICATES)
    cases["again-by-token"] = tokens | {"test.seconds": WRITES_S}, "read more"
    cases["certificate"] = certificate_keys(gateway), "read 1"
    cases["certificate-denied"] = certificate_keys(gateway) | {"test.topic": CLOSED}, denied
    topics = {name: {"test.topic": f"java-{version}-{name}"} for name in cases}
    return {name: (topics[name] | keys, wanted) for name, (keys, wanted) in cases.items()}


def java_classpath(version):
    jars = sorted(install.kafka_jars().glob("*.jar"))
    newest = install.compiled(install.ROOT / "tests" / "peers" / "SecureClient.java", jars)
    if version == "4.3":
        return newest
    clients = (("org.apache.kafka", "kafka-clients", OLDER), install.LOG_COORDINATE)
    older = f"{install.maven_jars(f'kafka-clients-{OLDER}', clients)}/*"
    jackson = ":".join(str(each) for each in jars if each.name.startswith("jackson"))
    return f"{newest.split(':')[0]}:{older}:{jackson}"


@pytest.mark.parametrize("version", ["4.3", "3.9"])
def test_java_in_each_case(gateway, version, tmp_path):
    cases = java_cases(gateway, version)
    for name, (keys, _) in cases.items():
        lines = "".join(f"{key}={value}\n" for key, value in keys.items())
        (tmp_path / name).write_text(lines)
    urls = ",".join(f"file://{gateway.authority.path / each}" for each in ("token", "expired"))
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}"
    words = [install.java(), *JVM_SHORT, *JVM_QUIET, allowed, "-cp", java_classpath(version)]
    files = [str(tmp_path / name) for name in cases]
    done = subprocess.run(
        [*words, "SecureClient", *files], capture_output=True, text=True, timeout=JAVA_S_MAX
    )
    found = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    outcomes = {name: found[str(tmp_path / name)] for name in cases}
    for name, (_, wanted) in cases.items():
        if wanted == "read more":
            kind, count = outcomes[name].split()
            assert (kind, int(count) > 10) == ("read", True), outcomes
        elif wanted is None:
            assert not outcomes[name].startswith("read"), outcomes
        else:
            assert outcomes[name] == wanted, (name, outcomes, done.stderr[-2000:])


# -- kafkajs ---------------------------------------------------------------------------------------


def test_kafkajs_in_each_case(gateway, authority, tmp_path):
    cases, wanted = [], {}

    def add(name, outcome, **more):
        topic = CLOSED if name.endswith("denied") else f"js-{name}"
        cases.append({"name": name, "broker": gateway.at("LOGIN"), "topic": topic, **more})
        wanted[name] = outcome

    for mechanism in ("plain", "scram-sha-256", "scram-sha-512"):
        good = {"mechanism": mechanism, "username": "alice", "password": PASSWORD}
        add(mechanism, "read", sasl=good)
        add(f"{mechanism}-denied", "TOPIC_AUTHORIZATION_FAILED", sasl=good)
        add(f"{mechanism}-wrong", "KafkaJSSASLAuthenticationError", sasl=good | {"password": "no"})
    bearer = {"mechanism": "oauthbearer", "token": token_of(authority, PASSWORD)}
    add("oauthbearer", "read", sasl=bearer)
    expired = bearer | {"token": token_of(authority, "wrong")}
    # It takes the refusal for success, and its next request ends the connection.
    add("oauthbearer-wrong", "KafkaJSConnectionClosedError", sasl=expired)
    text = (authority.path / "Client.pem").read_text()
    cut = text.index("-----BEGIN CERT")
    place = gateway.at("CERTIFICATE")
    add("certificate", "read", broker=place, key=text[:cut], cert=text[cut:])
    file = tmp_path / "cases.json"
    file.write_text(json.dumps({"ca": authority.trusted.read_text(), "cases": cases}))
    node = shutil.which("node")
    assert node is not None
    modules = install.node_module("kafkajs", KAFKAJS) / "node_modules"
    script = install.ROOT / "tests" / "peers" / "secure.js"
    done = subprocess.run(
        [node, str(script), str(file)],
        env={**os.environ, "NODE_PATH": str(modules)},
        capture_output=True,
        text=True,
        timeout=JAVA_S_MAX,
    )
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert found == wanted, done.stderr[-2000:]


# -- our own commands ------------------------------------------------------------------------------


def test_our_commands_log_in_by_the_token_of_a_file(gateway, authority, tmp_path):
    def run(*words, token="token", stdin=""):
        lines = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": authority.trusted,
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file://{authority.path / token}",
        }
        config = tmp_path / "client.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        config.chmod(0o600)
        place = ("-b", gateway.at("LOGIN"), "--command-config", str(config))
        words = [sys.executable, "-m", "gateway", *words, *place]
        return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=60)

    assert run("topic", "create", "ours").returncode == 0
    sent = run("topic", "produce", "ours", stdin="a\nb\n")
    assert sent.returncode == 0, sent.stderr
    read = run("topic", "consume", "ours", "-n", "2", "--from", "start")
    assert [line.split()[-1] for line in read.stdout.splitlines()[-2:]] == ["a", "b"], read
    refused = run("topic", "list", token="expired")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (77, 1), refused
    (authority.path / "open").write_text(token_of(authority, PASSWORD))
    (authority.path / "open").chmod(0o644)
    others = run("topic", "list", token="open")
    assert (others.returncode, "run chmod 600" in others.stderr) == (78, True), others
