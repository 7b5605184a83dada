"""Goal: the secure variants of the image, of compose and of Kubernetes start without
`--allow-insecure`, and are otherwise the same; a cluster of them works with TLS, logins and ACLs.

Method: our own parsers for their commands, with certificates of a test; the command of the image
and two gateways of compose/cluster.secure.yaml as processes, with ZooKeeper and a bookie.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys

import kubernetes_validate
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from ruamel.yaml import YAML

from gateway.process import dev, serve
from gateway.process.secure_dev import secured
from gateway.security.exposed_listeners import exposed
from ledger.command_line.program import flags_of
from ledger.command_line.settings import Settings
from ledger.core.bookie_roles import URI_PREFIX
from ledger.node.audit import audit
from ledger.node.checks import offline_faults
from ledger.node.options import AUDIT_OPTIONS, NodeSettings
from ledger.node.serve import serve as bookie_serve
from tests.gateway.pki import Authority
from tests.gateway.test_image import dockerfile_words
from tests.gateway.test_kubernetes import RELEASES, container, kustomization, of_kind
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.compose import FILE, commands
from tests.peers.install import ROOT
from tests.peers.processes import Process, ports_in_a_row
from tests.peers.zookeeper import ZooKeeper

SECURE = FILE.with_name("cluster.secure.yaml")
PATCHES = ROOT / "compose" / "kubernetes-secure"
PASSWORD = "marked-secret-7Qz"
WAIT_S = 60.0
SERVERS = ("gateway-1", "gateway-2", "gateway-3")
BOOKIES = ("bookie-1", "bookie-2", "bookie-3", "bookie-4")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A directory with the files that the variants expect below /secrets and /keys."""
    authority = Authority(tmp_path_factory.mktemp("pki") / "ca")
    place = authority.path
    for name in (*SERVERS, *BOOKIES, "audit", "tls"):
        _, key, file = authority.issue(name)
        (place / f"{name}.key").write_text(key)
        (place / f"{name}.crt").write_text(file.read_text().removeprefix(key))
        for suffix in ("key", "crt"):
            (place / f"{name}.{suffix}").chmod(0o600)
    shutil.copy(authority.trusted, place / "ca.crt")
    return authority


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    for name in ("GATEWAY_PASSWORD", "PASSWORD"):
        monkeypatch.setenv(name, PASSWORD)


def options(words):
    """Return the options of a command as pairs; a switch has no value."""
    found = []
    for word in words:
        if word.startswith("--"):
            found.append((word, ""))
        elif found:
            found[-1] = (found[-1][0], word)
    return found


def faults(words, keys, data):
    """Return what a start with these words refuses, and the settings."""
    words = [re.sub("/(secrets|keys)/", f"{keys.path}/", word) for word in words]
    words = [str(data) if word == "/data" else word.replace("=/data", f"={data}") for word in words]
    kind = words[0]
    if kind == "serve" and "--name" in " ".join(words):
        settings = NodeSettings(flags_of(bookie_serve, words[1:]))
        return offline_faults(settings), settings
    if kind == "audit":
        settings = Settings(flags_of(audit, words[1:]), AUDIT_OPTIONS)
        return settings.faults, settings
    settings = serve.settings_of(flags_of(serve.serve, words[1:]))
    return serve.faults_of(settings), settings


def is_closed(settings):
    config = serve.config_of(settings)
    assert config.authorization.authorizer == "standard"
    assert {each.protocol for each in config.all_listeners} == {"SASL_SSL"}
    return not exposed(config.all_listeners, config.tls.client_auth) and config.bookie_tls


# compose


@pytest.mark.parametrize("name", [*SERVERS, *BOOKIES, "audit"])
def test_each_server_of_compose_starts_without_allow_insecure(name, keys, tmp_path):
    words, before = commands(SECURE)[name], commands()[name]
    assert ("--allow-insecure" in before) is (name != "audit")
    assert "--allow-insecure" not in words
    kept = [each for each in options(before) if each[0] != "--allow-insecure"]
    assert [each for each in options(words) if each in kept] == kept
    found, settings = faults(words[3:], keys, tmp_path / "data")
    assert found == []
    assert name not in SERVERS or is_closed(settings)


def test_a_server_of_compose_without_its_map_of_protocols_is_refused(keys, tmp_path):
    words = commands(SECURE)["gateway-1"][3:]
    left = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if "security-protocol-map" not in before + word
    ]
    found, _ = faults(left, keys, tmp_path / "data")
    assert len([each for each in found if "other machines can reach it" in each]) == 2


def test_the_overlay_has_the_services_of_the_cluster_and_one_that_writes_the_user():
    read = YAML(typ="safe").load
    services, before = read(SECURE)["services"], read(FILE)["services"]
    assert set(services) - {"users"} == set(before) - {"zookeeper"}
    words = services["users"]["command"]
    assert words[:3] == ["user", "bootstrap", "gateway"]
    for name in SERVERS:
        assert services[name]["depends_on"]["users"] == {
            "condition": "service_completed_successfully"
        }
    assert all(PASSWORD not in str(each) for each in services.values())


# Kubernetes


def merged(base, patch):
    """Return a strategic merge: lists of named objects by their names, other lists replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        both = base.keys() & patch.keys()
        return base | patch | {key: merged(base[key], patch[key]) for key in both}
    is_named = isinstance(base, list) and all(isinstance(each, dict) for each in [*base, *patch])
    if not is_named:
        return patch
    by = "mountPath" if "mountPath" in (patch or base)[0] else "name"
    found = {each[by]: each for each in base}
    for each in patch:
        found[each[by]] = merged(found[each[by]], each) if each[by] in found else each
    return list(found.values())


def patched(name):
    (patch,) = YAML(typ="safe").load_all(PATCHES / f"{name}s.yaml")
    return merged(copy.deepcopy(of_kind("StatefulSet")[name]), patch)


@pytest.mark.parametrize("name", ["gateway", "bookie", "auditor"])
@pytest.mark.parametrize("release", RELEASES)
def test_each_patched_set_is_valid(name, release):
    found = patched(name)
    kubernetes_validate.validate(found, release, strict=True)
    assert found["spec"]["template"]["spec"]["initContainers"]


@pytest.mark.parametrize("name", ["gateway", "bookie", "auditor"])
def test_each_pod_starts_without_allow_insecure(name, keys, tmp_path):
    spec = patched(name)["spec"]["template"]["spec"]
    (made,) = spec["containers"]
    before = container(name)["args"]
    args = made["args"]
    assert [each for each in before if each != "--allow-insecure"] == [
        each for each in args if each in before
    ]
    assert {each["name"] for each in made["env"]} >= {
        each["name"] for each in container(name)["env"]
    }
    literals = {"OUTSIDE": "kafka.example.com", "ZOOKEEPER": "z:2181", "ORDINAL": "0", "ZONE": "a"}
    literals |= {"POD_NAME": f"{name}-0", "POD_NAMESPACE": "n"}
    words = [re.sub(r"\$\((\w+)\)", lambda part: literals[part[1]], each) for each in args]
    found, settings = faults(words, keys, tmp_path / "data")
    assert found == []
    assert name != "gateway" or is_closed(settings)


@pytest.mark.parametrize("name", ["gateway", "bookie", "auditor"])
def test_keys_are_copied_for_their_owner_alone(name, tmp_path):
    """By the init container: a Secret under fsGroup has mode 0440, which is refused."""
    spec = patched(name)["spec"]["template"]["spec"]
    (init,) = spec["initContainers"]
    (main,) = spec["containers"]
    for folder in ("tls", "keys"):
        (tmp_path / folder).mkdir()
    for each in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / "tls" / each).write_text(each)
        (tmp_path / "tls" / each).chmod(0o440)
    script = re.sub(r"/(tls|keys)/", rf"{tmp_path}/\1/", init["command"][2])
    subprocess.run(["sh", "-euc", script], check=True)
    modes = {each.name: each.stat().st_mode & 0o777 for each in (tmp_path / "keys").iterdir()}
    assert modes == dict.fromkeys(("tls.crt", "tls.key", "ca.crt"), 0o600)
    mounted = {each["mountPath"] for each in main["volumeMounts"]}
    assert {"/data", "/keys"} <= mounted and "/tls" not in mounted
    assert {each["name"] for each in spec["volumes"]} >= {"tls", "keys"}


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_first_user_of_kubernetes_gets_the_password_of_a_file(tmp_path, end):
    """`read` of a shell fails for a file whose last line has no end."""
    text = (PATCHES / "kustomization.yaml").read_text()
    (lines,) = re.findall(r"^#   (kubectl -n .* exec (?:.|\n#)*)$", text, re.MULTILINE)
    programs = {
        "kubectl": 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
        "gateway": 'echo "$@ $PASSWORD"',
    }
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o700)
    (tmp_path / "FILE").write_text("marked" + end)
    script = re.sub(r"\n#\s*", "\n", lines)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ZOOKEEPER": "z:1"}
    done = subprocess.run(["sh", "-euc", script], env=paths, cwd=tmp_path, capture_output=True)
    said = b"user bootstrap gateway --password env:PASSWORD --zookeeper z:1 marked\n"
    assert done.stdout == said, done.stderr


def test_the_kustomization_patches_each_set():
    (found,) = YAML(typ="safe").load_all(PATCHES / "kustomization.yaml")
    assert found["namespace"] == kustomization()["namespace"]
    listed = {each["path"] for each in found["patches"]}
    assert listed == {each.name for each in PATCHES.glob("*.yaml")} - {"kustomization.yaml"}


def test_the_certificate_that_is_asked_for_has_all_names_and_roles():
    """All servers show it. Without a role, bookies deny what gateways and auditors ask."""
    asked = (PATCHES / "kustomization.yaml").read_text().partition("apiVersion")[0]
    words = set(re.findall(r"[\w.:*$-]+[\w]", asked))
    namespace = kustomization()["namespace"]
    services = {f"*.{name}.{namespace}.svc" for name in ("gateway", "bookie")}
    assert words >= {*services, f"bootstrap.{namespace}.svc", "*.$OUTSIDE", "localhost"}
    assert words >= {f"{URI_PREFIX}{role}" for role in ("gateway", "bookie", "auditor")}


# processes


def secure_command(ports):
    """Return the command of the image with --secure, at these ports."""
    _, words = dockerfile_words()
    at = dict(zip(("9092", "29092"), map(str, ports), strict=True))
    words = [re.sub(r":(29092|9092)$", lambda part: f":{at[part[1]]}", word) for word in words]
    return ["--secure" if word == "--allow-insecure" else word for word in words]


def test_the_command_of_the_image_with_secure_is_closed(tmp_path):
    words = [str(tmp_path) if word == "/data" else word for word in secure_command((9092, 29092))]
    settings = dev.settings_of(flags_of(dev.dev, words[1:]))
    assert dev.faults_of(settings) == []
    config = secured(dev.config_of(settings))
    assert not exposed(config.all_listeners, config.tls.client_auth)
    assert {"gateway", "localhost"} <= set(
        json.loads((tmp_path / "secure" / "server.json").read_text())["names"]
    )


@pytest.mark.process
def test_the_command_of_the_image_with_secure_serves_both_listeners(tmp_path):
    ports = ports_in_a_row(2)
    data = tmp_path / "data"
    words = [str(data) if word == "/data" else word for word in secure_command(ports)]
    words = [word.replace("=gateway:", "=127.0.0.1:") for word in words]
    argv = [install.gateway_python(), "-m", "gateway", *words, "--no-http-port"]
    process = Process(argv, tmp_path / "log")
    try:
        process.wait_output("KafkaServer", WAIT_S)
        for port in ports:
            ours = (
                "-b",
                f"localhost:{port}",
                "--command-config",
                data / "secure/client.properties",
            )
            done = subprocess.run(
                [sys.executable, "-m", "gateway", "health", *ours], capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            plain = {"bootstrap.servers": f"localhost:{port}", "log_level": 0}
            with pytest.raises(KafkaException):
                AdminClient(plain).list_topics(timeout=2.0)
    finally:
        process.stop(WAIT_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, keys):
    """Two gateways of compose/cluster.secure.yaml; the bookie has no TLS here."""
    place = tmp_path_factory.mktemp("cluster")
    ports = ports_in_a_row(4)
    started = []
    environment = {**os.environ, "GATEWAY_PASSWORD": PASSWORD}
    try:
        zookeeper = ZooKeeper(place / "zookeeper")
        zookeeper.start()
        started.append(zookeeper)
        servers = f"127.0.0.1:{zookeeper.port}"
        bookie = BookieProcess(place / "bookie", servers)
        bookie.start()
        started.append(bookie)
        users = YAML(typ="safe").load(SECURE)["services"]["users"]["command"]
        words = [servers if word == "zookeeper:2181" else word for word in users]
        run = [install.gateway_python(), "-m", "gateway", *words]
        done = subprocess.run(run, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for number, name in enumerate(SERVERS[:2]):
            words = commands(SECURE)[name]
            words = [servers if word == "zookeeper:2181" else word for word in words]
            words = [word.replace("/secrets/", f"{keys.path}/") for word in words]
            words = _local(words, ports[2 * number : 2 * number + 2])
            process = Process(
                [install.gateway_python(), *words[1:]], place / f"{name}.log", environment
            )
            started.append(process)
            process.wait_output("KafkaServer", WAIT_S)
        yield [f"localhost:{ports[at]}" for at in (0, 2)], keys
    finally:
        for each in reversed(started):
            each.stop()


def _local(words, ports):
    """Let a gateway listen on loopback, and reach the bookie without TLS."""
    outside, inside = ports
    found = []
    for before, word in zip(["", *words], words, strict=False):
        if "--bookie-tls" in before + word:
            continue
        word = re.sub(r"0\.0\.0\.0|gateway-\d(?=:)", "127.0.0.1", word)
        word = re.sub(r"(OUTSIDE=.*):\d+$", rf"\1:{outside}", word)
        found.append(re.sub(r"(INSIDE=.*):\d+$", rf"\1:{inside}", word))
    return found


def login_of(cluster, password=PASSWORD):
    servers, keys = cluster
    return {
        "bootstrap.servers": ",".join(servers),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(keys.trusted),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "gateway",
        "sasl.password": password,
        "log_level": 0,
    }


@pytest.mark.process
@pytest.mark.zookeeper
def test_gateways_with_tls_logins_and_acls_answer_for_each_other(cluster, tmp_path):
    """A transaction over partitions of both ends by markers that one sends to the other."""
    admin = AdminClient(login_of(cluster))
    (made,) = admin.create_topics([_topic("t", 8)]).values()
    made.result(WAIT_S)
    found = admin.list_topics(timeout=WAIT_S)
    assert len(found.brokers) == 2
    assert len({each.leader for each in found.topics["t"].partitions.values()}) == 2
    producer = Producer({**login_of(cluster), "transactional.id": "x"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for partition in range(8):
        producer.produce("t", b"%d" % partition, partition=partition)
    producer.commit_transaction(WAIT_S)
    consumer = Consumer({**login_of(cluster), "group.id": "g", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("t", each, 0) for each in range(8)])
    read = {consumer.poll(WAIT_S).value() for _ in range(8)}
    consumer.close()
    assert read == {b"%d" % each for each in range(8)}


def _topic(name, partitions):
    from confluent_kafka.admin import NewTopic

    return NewTopic(name, partitions, 1)


@pytest.mark.process
@pytest.mark.zookeeper
def test_commands_that_ask_every_gateway_work_with_a_login(cluster, tmp_path):
    servers, keys = cluster
    file = tmp_path / "client.properties"
    file.write_text(
        f"security.protocol=SASL_SSL\nssl.ca.location={keys.trusted}\n"
        "sasl.mechanism=SCRAM-SHA-512\nsasl.username=gateway\nsasl.password=env:GATEWAY_PASSWORD\n"
    )
    file.chmod(0o600)
    for words in (("topic", "list"), ("group", "list"), ("events", "-n", "5"), ("cluster", "info")):
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *words, "-b", servers[1], "--command-config", file],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.process
@pytest.mark.zookeeper
def test_a_client_with_a_wrong_password_is_refused_by_both(cluster):
    for server in cluster[0]:
        settings = login_of(cluster, "wrong") | {"bootstrap.servers": server}
        with pytest.raises(KafkaException):
            AdminClient(settings).list_topics(timeout=2.0)
