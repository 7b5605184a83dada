"""Goal: a listener has settings of its own by Kafka's keys `listener.name.NAME.KEY`, and every
fault of them names the key.

Method: files and variables read in this process, what `--print-config` and workers get of them, and
a port in this process whose listeners differ.
"""

from __future__ import annotations

import pytest

from gateway.config import Listener, SaslConfig, TlsConfig
from gateway.process import dev, serve
from gateway.security.exposed_listeners import exposed
from ledger.command_line.program import flags_of
from ledger.command_line.settings import Settings
from ledger.command_line.settings_report import report
from tests.gateway.pki import Authority
from tests.gateway.secure_rig import Client, client_tls, secure_port

pytestmark = pytest.mark.real_loop
MAP = "INNER:SSL,OUTER:SASL_SSL"
UNSUPPORTED = 33


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    made = Authority(tmp_path_factory.mktemp("pki") / "ca")
    for name in ("server", "inner", "client"):
        made.issue(name)
    return made


def read(tmp_path, lines, variables=None, command=dev.dev, module=dev, listeners=True):
    file = tmp_path / "server.properties"
    first = ["listeners=INNER://127.0.0.1:9093,OUTER://127.0.0.1:9094"] if listeners else []
    first += [f"listener.security.protocol.map={MAP}"] if listeners else []
    file.write_text("\n".join([*first, *lines]))
    words = ["--config", str(file)]
    return Settings(flags_of(command, words), module.TABLE, variables or {})


def lines_of(authority, *more):
    return [
        f"ssl.keystore.location={authority.path / 'server.pem'}",
        f"ssl.truststore.location={authority.trusted}",
        f"listener.name.inner.ssl.keystore.location={authority.path / 'inner.pem'}",
        "listener.name.inner.ssl.client.auth=required",
        "listener.name.inner.ssl.principal.mapping.rules=RULE:^CN=(.*)$/$1/,DEFAULT",
        "listener.name.outer.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
        "listener.name.outer.connections.max.reauth.ms=60000",
        *more,
    ]


def test_a_listener_overrides_the_settings_of_all(tmp_path, authority):
    found = read(tmp_path, lines_of(authority))
    assert dev.faults_of(found) == []
    config = dev.config_of(found)
    inner, outer = config.listeners
    tls = config.tls_of(inner)
    assert (tls.keystore, tls.client_auth) == (authority.path / "inner.pem", "required")
    assert tls.truststore == authority.trusted
    assert tls.principal_rules == "RULE:^CN=(.*)$/$1/,DEFAULT"
    assert config.tls_of(outer).keystore == authority.path / "server.pem"
    assert config.sasl_of(outer).mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert config.sasl_of(outer).session_s == 60.0
    assert config.sasl.mechanisms == SaslConfig().mechanisms


def test_a_variable_of_kafkas_images_names_the_listener_too(tmp_path, authority):
    variables = {
        "KAFKA_LISTENER_NAME_INNER_SSL_CLIENT_AUTH": "none",
        "KAFKA_LISTENER_NAME_OUTER_SASL_ENABLED_MECHANISMS": "SCRAM-SHA-512",
    }
    found = read(tmp_path, lines_of(authority), variables)
    assert (found.faults, found.warnings) == ([], [])
    config = dev.config_of(found)
    assert config.tls_of(config.listeners[0]).client_auth == "none"
    assert config.sasl_of(config.listeners[1]).mechanisms == ("SCRAM-SHA-512",)
    name = "listener.name.inner.ssl.client.auth"
    assert found.origin(name) == "environment KAFKA_LISTENER_NAME_INNER_SSL_CLIENT_AUTH"


def test_workers_and_printed_settings_have_them(tmp_path, authority):
    found = read(tmp_path, lines_of(authority))
    again = Settings(flags_of(dev.dev, []), dev.TABLE, found.of_file())
    assert again.faults == []
    assert dev.config_of(again) == dev.config_of(found)
    toml = tmp_path / "printed.toml"
    toml.write_text(report(found, "toml"))
    printed = Settings(flags_of(dev.dev, ["--config", str(toml)]), dev.TABLE, {})
    assert printed.faults == []
    assert dev.config_of(printed) == dev.config_of(found)
    assert "listener.name.outer.sasl.enabled.mechanisms" in report(found, "table")


def test_keys_given_in_parts_take_the_place_of_a_file(tmp_path, authority):
    text = (authority.path / "inner.pem").read_text()
    cut = text.index("-----BEGIN CERT")
    for name, part in (("key", text[:cut]), ("chain", text[cut:])):
        (tmp_path / name).write_text(part)
        (tmp_path / name).chmod(0o600)
    lines = [
        f"ssl.keystore.location={authority.path / 'server.pem'}",
        f"listener.name.inner.ssl.keystore.key=file:{tmp_path / 'key'}",
        f"listener.name.inner.ssl.keystore.certificate.chain=file:{tmp_path / 'chain'}",
    ]
    found = read(tmp_path, lines)
    assert dev.faults_of(found) == []
    tls = dev.config_of(found).tls_of(Listener("INNER", "127.0.0.1", 9093, protocol="SSL"))
    assert (tls.keystore, tls.key) == (None, f"file:{tmp_path / 'key'}")


def test_as_in_kafka_a_certificate_is_asked_of_clients_of_sasl_by_a_setting_of_the_listener_only(
    tmp_path, authority
):
    shared = [*lines_of(authority)[:2], "ssl.client.auth=required"]
    config = dev.config_of(read(tmp_path, shared))
    assert [config.tls_of(each).client_auth for each in config.listeners] == ["required", "none"]
    own = [*shared, "listener.name.outer.ssl.client.auth=requested"]
    config = dev.config_of(read(tmp_path, own))
    assert [config.tls_of(each).client_auth for each in config.listeners] == [
        "required",
        "requested",
    ]
    other = [*shared, "listener.name.outer.connections.max.reauth.ms=1000"]
    config = dev.config_of(read(tmp_path, other))
    assert config.tls_of(config.listeners[1]).client_auth == "none"


def test_the_protection_of_each_listener_decides_whether_it_is_exposed(tmp_path, authority):
    config = dev.config_of(read(tmp_path, lines_of(authority)))
    moved = [each._replace(host="0.0.0.0") for each in config.listeners]
    assert exposed(moved, lambda each: config.tls_of(each).client_auth) == []
    bare = dev.config_of(read(tmp_path, lines_of(authority)[:2]))
    assert exposed(moved, lambda each: bare.tls_of(each).client_auth) == [moved[0]]


FAULTS = [
    ("listener.name.other.ssl.client.auth=required", "there is no such listener; there are: INNER"),
    ("listener.name.inner.sasl.enabled.mechanisms=PLAIN", "has no effect on a listener with SSL"),
    ("listener.name.inner.ssl.client.auth=maybe", "must be none, requested or required"),
    ("listener.name.inner.ssl.key.password=marked", "must be file:PATH or env:NAME"),
    ("listener.name.inner.ssl.keystore.location=/none.pem", "/none.pem: No such file"),
    ("listener.name.inner.ssl.keystore.key=env:NONE", "keep either ssl.keystore.location or"),
    ("listener.name.outer.sasl.enabled.mechanisms=GSSAPI", "must be PLAIN, SCRAM-SHA-256"),
    ("listener.name.outer.sasl.enabled.mechanisms=OAUTHBEARER", "OAUTHBEARER needs them"),
    ("listener.name.outer.connections.max.reauth.ms=x", "must be"),
    ("listener.name.inner.ssl.principal.mapping.rules=RULE:(/x/", "its pattern is invalid"),
]


@pytest.mark.parametrize(("line", "words"), FAULTS)
def test_a_fault_names_the_key_and_shows_no_secret(line, words, tmp_path, authority):
    key = line.partition("=")[0]
    kept = [each for each in lines_of(authority) if not each.startswith(f"{key}=")]
    found = read(tmp_path, [*kept, line])
    faults = dev.faults_of(found)
    assert len(faults) == 1
    assert words in faults[0]
    assert "marked" not in faults[0]


def test_a_key_without_a_named_listener_is_a_fault(tmp_path):
    found = read(tmp_path, ["listener.name.inner.ssl.client.auth=required"], listeners=False)
    (fault,) = dev.faults_of(found)
    assert "there is no such listener; there are: PLAINTEXT" in fault


def test_a_listener_without_a_key_still_needs_that_of_all(tmp_path, authority):
    own = [each for each in lines_of(authority) if "inner" in each]
    faults = dev.faults_of(read(tmp_path, own))
    assert any("--ssl-keystore-location: is missing" in each for each in faults)


def test_gateways_reach_each_other_by_a_mechanism_of_their_listener(tmp_path, authority):
    lines = [
        *lines_of(authority)[:2],
        "zookeeper.connect=z:1",
        "inter.broker.listener.name=OUTER",
        "inter-broker-user=admin",
        "inter-broker-password=env:P",
        "listener.name.outer.sasl.enabled.mechanisms=SCRAM-SHA-256",
    ]
    found = read(tmp_path, lines, command=serve.serve, module=serve)
    (fault,) = serve.faults_of(found)
    assert "SCRAM-SHA-512: is not enabled" in fault


async def test_listeners_differ_in_their_keys_rules_and_mechanisms(authority):
    shared = TlsConfig(keystore=authority.path / "server.pem", truststore=authority.trusted)
    inner = TlsConfig(
        keystore=authority.path / "inner.pem",
        truststore=authority.trusted,
        client_auth="required",
        principal_rules="RULE:^CN=(.*)$/$1/U",
    )
    own = {
        "listener_tls": {"SSL": inner},
        "listener_sasl": {"SASL_SSL": SaslConfig(mechanisms=("SCRAM-SHA-256",), session_s=30.0)},
    }
    async with secure_port(shared, own=own) as port:
        context = client_tls(authority, authority.path / "client.pem")
        client = await Client.connect(port.at("SSL"), context)
        await client.who()
        assert port.principals == ["User:CLIENT"]
        other = await Client.connect(port.at("SASL_SSL"), client_tls(authority))
        assert client.writer.get_extra_info("peercert") != other.writer.get_extra_info("peercert")
        answer = await other.handshake("SCRAM-SHA-512")
        assert answer.error_code.value == UNSUPPORTED
        assert list(answer.mechanisms) == ["SCRAM-SHA-256"]
        third = await Client.connect(port.at("SASL_SSL"), client_tls(authority))
        assert (await third.scram("SCRAM-SHA-256")).session_lifetime.total_seconds() == 30
        authority.issue("inner")
        port.secure.reload()
        again = await Client.connect(port.at("SSL"), context)
        assert again.writer.get_extra_info("peercert") != client.writer.get_extra_info("peercert")
