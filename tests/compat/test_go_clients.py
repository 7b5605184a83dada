"""Goal: franz-go, sarama and kafka-go, unchanged, write and read by TLS, by a certificate and by
each mechanism that they know; a wrong password and a missing right are refused; a session that ends
is renewed. Members of franz-go read by the consumer protocol (KIP-848), and share partitions.

Method: the gateway of the secure matrix; one program in Go, which runs all cases in one call. For
groups, an embedded gateway, processes with members of franz-go, and its own published tests.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.logins.tokens import TokenKafka
from tests.compat.test_consumer_protocol import described, lags
from tests.compat.test_secure_matrix import (
    CLOSED,
    MECHANISMS,
    PASSWORD,
    REAUTHENTICATES,
    WAIT_S,
    WRITES_S,
    certified,
    matrix,
    token_of,
)
from tests.histories.tenures import check, reading_of
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.members import Members, events
from tests.peers.processes import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.process, pytest.mark.proof]

CLIENTS = {"franz-go": MECHANISMS, "sarama": MECHANISMS, "kafka-go": MECHANISMS[:3]}
CASES_S_MAX = 240
READ = "read 1"
REFUSED = {"franz-go": "code 58", "sarama": "SASL Authentication failed", "kafka-go": "code 58"}
# It ends the connection when it gets the reason, so it never gets Kafka's code.
TOKEN_REFUSED = {**REFUSED, "franz-go": "unexpected data in oauth response"}
# kafka-go asks for all topics, and a broker hides those that a client may not describe.
DENIED = {"franz-go": "code 29", "sarama": "code 29", "kafka-go": "code 3"}
PARTITIONS, RECORDS = 6, 600
SUITE_S_MAX = 280
SUITE_RECORDS = 20_000
GROUP_TESTS = ("TestGroupETL", "TestGroupSimple", "Test848RegexBrokerResolves")
FIRST = "TestPauseIssueOct2023"  # it runs alone, and asks which versions the broker has


# -- logins ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return certified(tmp_path_factory.mktemp("pki") / "ca")


@pytest.fixture(scope="module")
def secure(tmp_path_factory, authority):
    with matrix(tmp_path_factory.mktemp("matrix"), authority) as started:
        yield started


@pytest.fixture(scope="module")
def outcomes(secure, authority, tmp_path_factory):
    """What each case of each client printed, by its name."""
    cases = [case for client in CLIENTS for case in cases_of(secure, authority, client)]
    return outcomes_of(cases, secure.at("PLAINTEXT"), tmp_path_factory.mktemp("cases"))


def outcomes_of(cases, bootstrap, directory):
    """Make the topics of these cases, run them, and return what each printed, by its name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(each["topic"], 1, 1) for each in cases if each["topic"] != CLOSED]
    for each in admin.create_topics(topics).values():
        each.result(WAIT_S)
    file = directory / "cases.json"
    file.write_text(json.dumps(cases))
    done = subprocess.run(
        [install.go_clients(), "cases", str(file)],
        capture_output=True,
        text=True,
        timeout=CASES_S_MAX,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert found.keys() == {each["name"] for each in cases}
    return found


def cases_of(gateway, authority, client):
    """Yield the cases of one client, as the program takes them."""

    def case(name, listener, **more):
        topic = CLOSED if name.endswith("denied") else f"{client}-{name}"
        common = {"name": f"{client} {name}", "client": client, "broker": gateway.at(listener)}
        tls = {} if listener == "PLAINTEXT" else {"authority": str(authority.trusted)}
        return common | tls | {"topic": topic} | more

    own = {"key": str(authority.path / "Client.pem")}
    yield case("plaintext", "PLAINTEXT")
    yield case("tls", "TLS")
    yield case("certificate", "CERTIFICATE", **own)
    yield case("certificate-denied", "CERTIFICATE", **own)
    yield case("no-certificate", "CERTIFICATE")
    for mechanism in CLIENTS[client]:
        good = {"mechanism": mechanism, "user": "alice", "password": PASSWORD}
        good |= {"token": token_of(authority, PASSWORD)}
        bad = good | {"password": "wrong", "token": token_of(authority, "wrong")}
        yield case(mechanism, "LOGIN", **good)
        yield case(f"{mechanism}-denied", "LOGIN", **good)
        yield case(f"{mechanism}-wrong", "LOGIN", **bad)
        yield case(f"{mechanism}-again", REAUTHENTICATES, **good, seconds=WRITES_S)


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_writes_and_reads_by_tls_a_certificate_and_each_mechanism(outcomes, client):
    names = ("plaintext", "tls", "certificate", *CLIENTS[client])
    assert {name: outcomes[f"{client} {name}"] for name in names} == dict.fromkeys(names, READ)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_without_the_right_is_refused(outcomes, client):
    names = [f"{client} {name}-denied" for name in ("certificate", *CLIENTS[client])]
    assert {name: outcomes[name] for name in names} == dict.fromkeys(names, DENIED[client])


@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_password_or_an_expired_token_is_refused(outcomes, client):
    for mechanism in CLIENTS[client]:
        wanted = TOKEN_REFUSED if mechanism == "OAUTHBEARER" else REFUSED
        assert wanted[client] in outcomes[f"{client} {mechanism}-wrong"], mechanism


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_without_a_certificate_is_refused(outcomes, client):
    assert "certificate required" in outcomes[f"{client} no-certificate"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_goes_on_when_its_session_ends(outcomes, client):
    for mechanism in CLIENTS[client]:
        kind, count = outcomes[f"{client} {mechanism}-again"].split()
        assert (kind, int(count) > 10) == ("read", True), mechanism


def has_coordinators(kafka):
    """Return whether a broker that has just started serves groups."""
    reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "first"})
    try:
        reader.committed([TopicPartition("none", 0)], timeout=WAIT_S)
    except KafkaException:
        return False
    finally:
        reader.close()
    return True


def test_the_clients_report_the_same_with_kafka(outcomes, authority, tmp_path):
    tokens = {each: token_of(authority, each) for each in (PASSWORD, "wrong")}
    with TokenKafka(tmp_path / "kafka", authority.path / "jwks.json") as kafka:
        cases = []
        for client in CLIENTS:
            common = {"client": client, "topic": f"of-{client}"}
            cases.append({"name": f"{client} plaintext", "broker": kafka.bootstrap, **common})
            common |= {"broker": f"127.0.0.1:{kafka.token_port}", "mechanism": "OAUTHBEARER"}
            if "OAUTHBEARER" in CLIENTS[client]:
                name, topic = f"{client} OAUTHBEARER", f"of-{client}-token"
                cases.append({"name": name, **common, "topic": topic, "token": tokens[PASSWORD]})
                wrong = {"name": f"{name}-wrong", "topic": f"{topic}-wrong"}
                cases.append({**common, **wrong, "token": tokens["wrong"]})
        wait_until(lambda: has_coordinators(kafka), "Kafka to serve groups", WAIT_S * 3)
        theirs = outcomes_of(cases, kafka.bootstrap, tmp_path)
    assert theirs == {name: outcomes[name] for name in theirs}


# -- groups of the consumer protocol ---------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("groups") / "data") as started:
        yield started


def written(gateway, topic):
    """Make a topic with records. Returns the partition and the offset of each."""
    admin = AdminClient({"bootstrap.servers": gateway.bootstrap})
    for each in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        each.result(WAIT_S)
    producer = Producer({"bootstrap.servers": gateway.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    return [
        (place, offset) for place in range(PARTITIONS) for offset in range(RECORDS // PARTITIONS)
    ]


def owned(text):
    """Return the partitions of each member that has some now."""
    having = {}
    for tenure in reading_of(events(text)).tenures:
        if tenure.ended_us is None:
            having.setdefault(tenure.member, set()).add(tenure.partition)
    return having


def test_members_of_franz_go_share_partitions_and_give_them_back(plain, tmp_path):
    group = "franz-shared"
    places = written(plain, group)
    members = Members(brokers=plain.bootstrap, group=group, topic=group, count=1)
    address = plain.bootstrap
    with (
        members.started("franz-go", tmp_path, "first") as first,
        members.started("franz-go", tmp_path, "second") as second,
    ):

        def shared():
            halves = [*owned(first.output()).values(), *owned(second.output()).values()]
            return sorted(map(len, halves)) == [3, 3] and len(set.union(*halves)) == PARTITIONS

        first.wait_for(shared, "two members to share the partitions", WAIT_S)
        wait_until(lambda: lags(address, group) == [0] * PARTITIONS, "all to be read", WAIT_S)
        (state,) = described(address, group, "--state")
        assert (state["state"], state["members"]) == ("Stable", 2)
        assert second.stop() == 0
        alone = {frozenset(range(PARTITIONS))}
        first.wait_for(
            lambda: set(map(frozenset, owned(first.output()).values())) == alone,
            "the other member to have all partitions",
            WAIT_S,
        )
        assert first.stop() == 0
        seen = [*events(first.output()), *events(second.output())]
    assert check(seen, places) == []
    (state,) = described(address, group, "--state")
    assert (state["state"], state["members"]) == ("Empty", 0)


def test_the_published_group_tests_of_franz_go_pass_by_the_consumer_protocol(plain):
    directory = install.kgo_tests()
    settings = {
        "KGO_SEEDS": plain.bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(SUITE_RECORDS),
        "KGO_TEST_UNSAFE": "1",
    }
    words = ["-test.run", f"^({'|'.join((FIRST, *GROUP_TESTS))})$", "-test.v"]
    done = subprocess.run(
        [str(directory / "kgo.test"), *words, "-test.timeout", f"{SUITE_S_MAX}s"],
        cwd=directory,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "--- SKIP" not in done.stdout
    variants = ("range/848", "sticky/848", "sticky/848/static")
    passed = [*GROUP_TESTS, "TestGroupSimple/848", *(f"TestGroupETL/{each}" for each in variants)]
    assert [each for each in passed if f"--- PASS: {each} " not in done.stdout] == []
