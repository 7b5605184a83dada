"""Goal: named listeners are configured by flags, variables and files, and every fault of them names
what to change.

Method: the settings of both commands in this process, and the command lines of workers.
"""

from __future__ import annotations

import pytest

from gateway.config import GatewayConfig, Listener
from gateway.process import dev, serve
from gateway.process.supervisor import commands
from gateway.security.exposed_listeners import exposed
from ledger.command_line.program import flags_of

TWO = ["--listener", "OUT=0.0.0.0:9092", "--listener", "IN=0.0.0.0:29092"]
ADVERTISED = ["--advertise", "OUT=localhost:9092", "--advertise", "IN=gateway:29092"]


def settings_of(module, words):
    command = module.dev if module is dev else module.serve
    needed = [] if module is dev else ["--zookeeper", "z:1"]
    needed.append("--allow-insecure")
    return module.settings_of(flags_of(command, [*needed, *words]))


def test_listeners_are_configured_by_name():
    for module in (dev, serve):
        config = module.config_of(settings_of(module, [*TWO, *ADVERTISED]))
        assert config.all_listeners == config.listeners
        assert config.listeners == (
            Listener("OUT", "0.0.0.0", 9092, "localhost", 9092),
            Listener("IN", "0.0.0.0", 29092, "gateway", 29092),
        )
        assert (config.host, config.port) == ("0.0.0.0", 9092)


def test_the_short_form_is_one_listener_of_kafkas_name():
    words = ["--host", "h", "--port", "7", "--advertised-host", "a"]
    config = dev.config_of(settings_of(dev, words))
    assert config.listeners == ()
    assert config.all_listeners == (Listener("PLAINTEXT", "h", 7, "a", None),)
    assert GatewayConfig().all_listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092),)


MIXED = "cannot be used with --listener A=h:1; pass"
FAULTS = [
    (["--listener", "A=h:1", "--port", "7"], f"--port 7: {MIXED} --listener NAME=HOST:PORT"),
    (["--listener", "A=h:1", "--host", "h"], f"--host h: {MIXED} --listener NAME=HOST:PORT"),
    (
        ["--listener", "A=h:1", "--advertised-host", "a"],
        f"--advertised-host a: {MIXED} --advertise NAME=HOST:PORT",
    ),
    (["--listener", "a=h:1"], "--listener a=h:1: the name must have 1 to 64 characters: A to Z"),
    (["--listener", f"{'A' * 65}=h:1"], f"--listener {'A' * 65}=h:1: the name must have 1 to 64"),
    (["--listener", "A=h"], "--listener A=h: must be NAME=HOST:PORT, such as CLIENTS=localhost"),
    (["--listener", "h:1"], "--listener h:1: must be NAME=HOST:PORT"),
    (["--listener", "A=h:70000"], "--listener A=h:70000: its port must be between 0 and 65535"),
    (["--listener", f"A={'h' * 256}:1"], f"--listener A={'h' * 184}"),
    (
        ["--listener", "A=h:1", "--listener", "A=h:2"],
        "--listener A=h:1 --listener A=h:2: A is named 2 times; keep one",
    ),
    (
        ["--listener", "A=h:1", "--listener", "B=i:1"],
        "--listener B=i:1: A has port 1 too; take another port",
    ),
    (
        ["--listener", "A=h:1", "--advertise", "B=h:1"],
        "--advertise B=h:1: there is no listener B; pass --listener B=HOST:PORT",
    ),
    (["--advertise", "B=h:1"], "--advertise B=h:1: there is no listener B; pass --listener B=HOST"),
    (
        ["--listener", "A=h:1", "--advertise", "A=0.0.0.0:1"],
        "--advertise A=0.0.0.0:1: clients cannot connect to 0.0.0.0; name a host that they can",
    ),
    (
        ["--listener", "A=h:1", "--advertise", "A=[::]:1"],
        "--advertise A=[::]:1: clients cannot connect to ::",
    ),
    (
        ["--listener", "A=h:1", "--advertise", "A=h:0"],
        "--advertise A=h:0: its port must be between 1 and 65535",
    ),
    (
        ["--listener", "SASL_SSL=h:1"],
        "--ssl-keystore-location: is missing; TLS needs a file with a private key",
    ),
    (
        ["--listener", "A=h:1", "--listener-security-protocol-map", "A:SSL"],
        "--ssl-keystore-location: is missing; TLS needs a file with a private key",
    ),
    (
        ["--listener", "SASL_PLAINTEXT=h:1", "--sasl-enabled-mechanisms", "PLAIN"],
        "--sasl-enabled-mechanisms PLAIN: PLAIN is not offered without TLS",
    ),
    (
        ["--listener", "SSL=h:1", "--ssl-client-auth", "required", "--ssl-keystore-location", "/k"],
        "--ssl-client-auth required: pass the CA certificates of clients too",
    ),
    (
        ["--listener", "SSL=h:1", "--ssl-keystore-key", "env:K"],
        "--ssl-keystore-key env:K: pass its certificates too",
    ),
    (
        ["--listener", "SSL=h:1", "--ssl-keystore-location", "/no/such"],
        "--listener-security-protocol-map: /no/such: No such file",
    ),
    (
        ["--listener-security-protocol-map", "PLAINTEXT:SSL"],
        "--listener-security-protocol-map PLAINTEXT:SSL: the protocol SSL of the listener PLAIN",
    ),
    (
        ["--listener", "A=h:1", "--listener-security-protocol-map", "B:PLAINTEXT"],
        "--listener-security-protocol-map B:PLAINTEXT: has no protocol for the listener A",
    ),
    (
        ["--listener-security-protocol-map", "A:TLS"],
        "--listener-security-protocol-map A:TLS: must be NAME:PROTOCOL, and the protocol PLAINTEXT",
    ),
    (
        [word for n in range(17) for word in ("--listener", f"A{n}=h:{n}")],
        "--listener A0=h:0 --listener A1=h:1 ",
    ),
]


@pytest.mark.parametrize(("words", "fault"), FAULTS)
@pytest.mark.parametrize("module", [dev, serve])
def test_a_fault_of_listeners_names_what_to_change(module, words, fault):
    found = module.faults_of(settings_of(module, words))
    if module is serve:  # that gateways need a login is a fault of its own
        found = [each for each in found if not each.startswith("--inter-broker-")]
    (found,) = found
    assert found.startswith(fault)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            ["--listener", "A=0.0.0.0:1"],
            "--listener A=0.0.0.0:1: clients cannot connect to this address; pass one that they "
            "can with --advertise A=HOST:PORT",
        ),
        (
            ["--listener", "A=h:1", "--inter-broker-listener-name", "B"],
            "--inter-broker-listener-name B: there is no such listener; take A",
        ),
        (
            ["--inter-broker-listener-name", "B"],
            "--inter-broker-listener-name B: there is no such listener; take PLAINTEXT",
        ),
        (
            ["--listener", "A=h:1", "--peer-host", "p"],
            f"--peer-host p: {MIXED} --inter-broker-listener-name NAME instead",
        ),
        (
            ["--listener", "A=h:1", "--listener", "B=h:2", "--workers", "2"],
            "--listener B=h:2: A has port 2 too with 2 workers; take another port",
        ),
        (
            ["--listener", "A=h:9", "--advertise", "A=h:65535", "--workers", "2"],
            "--advertise A=h:65535: the port of the last worker would be 65536, above 65535",
        ),
    ],
)
def test_a_gateway_of_a_cluster_has_more_faults(words, fault):
    assert serve.faults_of(settings_of(serve, words)) == [fault]


EXPOSED = [
    (["--host", "192.0.2.1"], "--host 192.0.2.1: other machines can reach it without TLS and auth"),
    (["--listener", "A=h:1"], "--listener A=h:1: other machines can reach it without TLS and auth"),
    (
        ["--listener", "SASL_PLAINTEXT=h:1"],
        "--listener SASL_PLAINTEXT=h:1: other machines can reach it without TLS; give it SASL_SSL",
    ),
]


@pytest.mark.parametrize(("words", "fault"), EXPOSED)
@pytest.mark.parametrize("module", [dev, serve])
def test_a_listener_beyond_loopback_needs_tls_and_authentication(module, words, fault):
    command = module.dev if module is dev else module.serve
    needed = [] if module is dev else ["--zookeeper", "z:1"]
    needed += ["--inter-broker-user", "u", "--inter-broker-password", "env:P"]
    (found,) = module.faults_of(module.settings_of(flags_of(command, [*needed, *words])))
    assert found.startswith(fault)
    allowed = [*needed, *words, "--allow-insecure"]
    assert module.faults_of(module.settings_of(flags_of(command, allowed))) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "[::1]"])
def test_a_listener_on_loopback_needs_nothing(host):
    words = ["--listener", f"A={host}:1"]
    assert dev.faults_of(dev.settings_of(flags_of(dev.dev, words))) == []


def test_listeners_that_authenticate_inside_tls_are_not_exposed():
    made = [Listener("A", "h", 1, protocol=each) for each in ("SASL_SSL", "SSL")]
    assert exposed(made, lambda _: "required") == []
    assert [each.protocol for each in exposed(made, lambda _: "requested")] == ["SSL"]


def test_gateways_need_a_login_if_their_listener_has_sasl():
    words = ["--listener", "SASL_PLAINTEXT=h:1"]
    (fault,) = serve.faults_of(settings_of(serve, words))
    assert fault.startswith("--inter-broker-user and --inter-broker-password: missing; gateways")
    words += ["--inter-broker-user", "u", "--inter-broker-password", "env:P"]
    assert serve.faults_of(settings_of(serve, words)) == []
    (fault,) = serve.faults_of(settings_of(serve, [*words, "--inter-broker-mechanism", "PLAIN"]))
    assert "is not enabled; add it to --sasl-enabled-mechanisms" in fault


def test_the_ports_of_each_listener_count_up_with_workers():
    words = ["--zookeeper", "z:1", *TWO, *ADVERTISED, "--workers", "3", "--node-id", "4"]
    words += ["--listener", "ANY=h:0"]
    found = [
        serve.config_of(serve.settings_of(flags_of(serve.serve, line[4:])))
        for line in commands(words, 3, 4, 9092, named=True)
    ]
    assert [[each.port for each in one.listeners] for one in found] == [
        [9092, 29092, 0],
        [9093, 29093, 0],
        [9094, 29094, 0],
    ]
    assert [one.listeners[1].advertised_port for one in found] == [29092, 29093, 29094]
    assert [(one.node_id, one.workers) for one in found] == [(4, 1), (5, 1), (6, 1)]


def test_a_variable_and_a_file_take_several_values(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('listener = ["A=h:1", "B=h:2"]\nadvertise = "A=a:1, B=b:2"\n')
    from_file = settings_of(dev, ["--config", str(file)])
    file.with_suffix(".properties").write_text("listeners=A://h:1,B://h:2\n")
    of_kafka = settings_of(dev, ["--config", str(file.with_suffix(".properties"))])
    for found in (from_file, of_kafka):
        assert dev.faults_of(found) == []
        assert [str(each) for each in found["listener"]] == ["A=h:1", "B=h:2"]
    assert [str(each) for each in from_file["advertise"]] == ["A=a:1", "B=b:2"]


def test_the_fault_of_one_value_names_it(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('listener = ["A=h:1", "B=h"]\n')
    (fault,) = dev.faults_of(settings_of(dev, ["--config", str(file)]))
    assert fault.startswith(f"{file}:1: listener = ['A=h:1', 'B=h']: B=h: must be NAME=HOST:PORT")
    file.write_text("listener = 7\n")
    (fault,) = dev.faults_of(settings_of(dev, ["--config", str(file)]))
    assert fault == f"{file}:1: listener = 7: must be text, or a list of texts"
