"""Goal: every setting of gateways and bookies can be given by a flag, a variable, a file and, where
Kafka has it, by Kafka's key, and the right one wins; nothing is started when settings are printed.

Method: tests generated from the rows of all tables, in this process; one gateway as a process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from gateway.process import dev, serve
from gateway.process.cli import program as gateway
from gateway.process.kafka_keys import answer
from gateway.settings.broker_keys import BROKER_KEYS, STATIC_NAMES
from ledger.__main__ import program as bookie
from ledger.command_line.program import flags_of
from ledger.command_line.settings import OFF, Settings
from ledger.command_line.settings_report import report
from ledger.node.audit import audit
from ledger.node.options import AUDIT_OPTIONS, OPTIONS
from ledger.node.serve import serve as bookie_serve
from tests.peers.processes import Process

TABLES = {
    "gateway dev": (dev.dev, dev.TABLE),
    "gateway serve": (serve.serve, serve.TABLE),
    "bookie serve": (bookie_serve, OPTIONS),
    "bookie audit": (audit, AUDIT_OPTIONS),
}
# Values that rows may take; each row takes at least two of them.
POOL = (
    *("1", "3", "2", "true", "false", "300ms", "7s", "20m", "1GiB", "2GiB", "2MiB", "3MiB", "80%"),
    *("90m", "10.0.0.1:100", "10.0.0.2:0"),
    *(
        "DIGEST-MD5",
        "group",
        "never",
        "auto",
        "off",
        "tcp",
        "grpc",
        "enabled",
        "disabled",
        "a:1",
        "b:2",
        "/a",
    ),
    *("/b", "c", "d", "standard", "none", "A=h:1", "B=i:2", "A:PLAINTEXT", "B:PLAINTEXT", "A", "B"),
    *("file:/a", "env:B", "required", "requested", "TLSv1.2", "TLSv1.3", "PLAIN", "SCRAM-SHA-256"),
    *("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "RULE:a/b/"),
    *("RULE:a/c/", "https://a", "https://b", "RS256", "ES512", "2h"),
    *("classic", "consumer", "upgrade", "downgrade", "uniform", "range"),
)
EACH = pytest.mark.parametrize(
    ("command", "name"), [(command, row.name) for command in TABLES for row in TABLES[command][1]]
)
ORIGINS = ("default", "file", "environment", "flag")
START_S_MAX = 60


def accepts(row, text):
    try:
        row.parse_text(text)
    except ValueError:
        return False
    return not (row.off and text == OFF)  # has a flag of its own


def two_values(row):
    """Two texts that the row takes, for different values; the first one is not its default."""
    found = {str(row.parse_text(text)): text for text in POOL if accepts(row, text)}
    first = next(text for value, text in found.items() if value != str(row.default))
    second = next(text for text in found.values() if text != first)
    return first, second


def in_unit(value_s, unit):
    """Return a duration as a number, as Kafka writes it in this unit."""
    return f"{value_s * {'ms': 1000, 's': 1, 'm': 1 / 60}[unit]:.10g}"


def read(command, *words, environment=None):
    tool, table = TABLES[command]
    return Settings(flags_of(tool, list(words)), table, environment or {})


class Place:
    """Gives a row of a command values in files, variables and flags."""

    def __init__(self, command, name, directory):
        self.command = command
        self.row = TABLES[command][1][name]
        self.directory = directory

    def file(self, text, key=""):
        key = json.dumps(key) if key else self.row.name
        bare = self.row.is_switch or self.row.kind in ("PORT", "COUNT", "ID")
        bare = bare and text.isalnum()
        return self.save(f"# a comment\n{key} = {text if bare else json.dumps(text)}\n")

    def save(self, content, name="server.toml"):
        file = self.directory / name
        file.write_text(content)
        return str(file)

    def flag(self, text):
        if self.row.is_switch:
            return f"--{'' if text == 'true' else 'no-'}{self.row.name}"
        return f"--{self.row.name}={text}"

    def settings(self, values):
        """The settings with these values, by origin."""
        words = ["--config", self.file(values["file"])] if "file" in values else []
        words += [self.flag(values["flag"])] if "flag" in values else []
        variables = {}
        if "environment" in values:
            variables = {self.row.environment: values["environment"]}
        return read(self.command, *words, environment=variables)


# -- precedence, for every row ---------------------------------------------------------------------


@EACH
def test_each_origin_goes_before_the_ones_below_it(command, name, tmp_path):
    place = Place(command, name, tmp_path)
    row = place.row
    assert read(command)[name] == row.default
    low, high = two_values(row)
    for rank, origin in enumerate(ORIGINS[1:], 1):
        wanted = high if rank > 1 else low
        values = dict.fromkeys(ORIGINS[1:rank], low) | {origin: wanted}
        found = place.settings(values)
        assert found.faults == found.warnings == []
        assert found[name] == row.parse_text(wanted)
        assert found.origin(name) == {
            "file": f"file {tmp_path}/server.toml:2",
            "environment": f"environment {row.environment}",
            "flag": "flag",
        }.get(origin)
        others = [each.name for each in found.table if each.name != name]
        assert all(found.is_default(other) for other in others)


@EACH
def test_a_value_that_no_origin_may_have_is_a_fault_that_names_its_place(command, name, tmp_path):
    place = Place(command, name, tmp_path)
    row, bad = place.row, "\t"
    if accepts(row, bad):  # a free text; an empty variable counts as none
        bad = ""
    file, variable = place.file(bad), {row.environment: bad}
    if row.is_switch:
        file = place.save(f'# a comment\n{name} = "maybe"\n')
        variable = {row.environment: "maybe"}
    found = read(command, "--config", file, environment=variable)
    starts = [f"{tmp_path}/server.toml:2: {name} = ", f"{row.environment}="]
    assert all(map(str.startswith, found.faults, starts)), found.faults
    assert len(found.faults) == (0 if accepts(row, bad) else 1 + bool(bad or row.is_switch))
    if not row.is_switch:  # whose flags have no value
        found = read(command, place.flag(bad), environment=variable)
        assert all(line.startswith(f"--{name} ") for line in found.faults)
        assert len(found.faults) == (not accepts(row, bad))


# -- Kafka's keys ----------------------------------------------------------------------------------

KAFKA = [
    (command, row.name, key)
    for command, (_, table) in TABLES.items()
    for row in table
    for key in row.kafka
]


@pytest.mark.parametrize(("command", "name", "key"), KAFKA)
def test_a_key_of_kafka_sets_the_same(command, name, key, tmp_path):
    place = Place(command, name, tmp_path)
    text, wanted = two_values(place.row)[0], place.row.parse_text(two_values(place.row)[0])
    if key.unit:
        text = in_unit(wanted, key.unit)
    files = [
        place.file(text, key.name),
        place.save(f"# Kafka's\n{key.name}={text}\n", "server.properties"),
    ]
    for file in files:
        found = read(command, "--config", file)
        assert found.faults == found.warnings == []
        assert found[name] == wanted
        assert found.origin(name) == f"file {file}:2"


def test_the_keys_are_those_of_kafka():
    names = {key.name for _, _, key in KAFKA}
    removed = {name for name in names if name.startswith("zookeeper.")}  # in Kafka 4
    of_authorizer = {"super.users", "allow.everyone.if.no.acl.found"}  # Kafka passes these on to it
    assert names - removed - of_authorizer <= STATIC_NAMES | BROKER_KEYS.keys()
    assert {"zookeeper.connect", "zookeeper.set.acl"} <= removed


SERVER_PROPERTIES = """\
# As Apache Kafka 4.3 brings it, without its comments.
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
log.retention.hours=168
log.segment.bytes=1073741824
group.initial.rebalance.delay.ms=0
"""


def test_the_file_of_an_apache_kafka_is_read_with_a_warning_for_each_key_without_effect(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(SERVER_PROPERTIES)
    found = read("gateway dev", "--config", str(file))
    assert found.faults == []
    given = {row.name: found[row.name] for row in found.table if not found.is_default(row.name)}
    names = ("listener", "advertise", "listener-security-protocol-map")
    assert [" ".join(map(str, given.pop(name))) for name in names] == [
        "PLAINTEXT=0.0.0.0:9092 CONTROLLER=0.0.0.0:9093",
        "PLAINTEXT=localhost:9092 CONTROLLER=localhost:9093",
        "CONTROLLER:PLAINTEXT PLAINTEXT:PLAINTEXT SSL:SSL",
    ]
    assert dev.listener_faults(found) == []
    (only,) = dev.listeners_of(found)  # there is no controller
    assert only == ("PLAINTEXT", "0.0.0.0", 9092, "localhost", 9092, "PLAINTEXT")
    assert given == {
        "node-id": 1,
        "data": Path("/tmp/kraft-combined-logs"),
        "partitions": 1,
        "group-initial-rebalance-delay": 0.0,
    }
    warned = [line.removeprefix(f"{file}:").split(": ")[1] for line in found.warnings]
    keys = [line.partition("=")[0] for line in SERVER_PROPERTIES.splitlines()[1:]]
    set_here = {"node.id", "log.dirs", "num.partitions", "group.initial.rebalance.delay.ms"}
    set_here |= {"listeners", "advertised.listeners", "listener.security.protocol.map"}
    assert warned == [key for key in keys if key not in set_here]
    assert found.warnings[3] == (
        f"{file}:8: controller.listener.names: has no effect here; there is no controller, and "
        "its listeners are left out"
    )


def test_each_key_of_kafka_sets_something_or_is_a_warning():
    answers = {key: answer(key, "1", {}) for key in STATIC_NAMES | BROKER_KEYS.keys()}
    assert serve.TABLE.find_kafka("listeners") is not None
    assert None not in answers.values()
    refused = {key for key, found in answers.items() if found and found.is_fault}
    stores = {"ssl.keystore.type", "ssl.truststore.type"}
    assert refused == {"ssl.client.auth", *stores}
    assert answer("log.retention.hour", "1", {}) is None


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("ssl.keystore.type=JKS", True),
        ("ssl.keystore.type=PEM", False),
        ("security.inter.broker.protocol=SASL_PLAINTEXT", True),
        ("security.inter.broker.protocol=ssl", True),
        ("ssl.client.auth=none", False),
        ("listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL", False),
        ("listeners=PLAINTEXT://ssl.example.com:9092", False),
        ("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", False),
        ("zookeeper.ssl.client.enable=true", True),
        ("zookeeper.ssl.client.enable=false", False),
        ("authorizer.class.name=", False),
        ("listeners=PLAINTEXT://:9092", False),
        ("listener.name.external.ssl.keystore.type=JKS", True),
        ("listener.name.external.scram-sha-512.sasl.jaas.config=x", False),
    ],
)
def test_a_key_that_promises_protection_is_refused(line, is_refused, tmp_path):
    file = tmp_path / "a.properties"
    file.write_text(line)
    found = read("gateway dev", "--config", str(file))
    faults = [*found.faults, *dev.listener_faults(found)]
    key = line.partition("=")[0]
    is_setting = found.table.find_kafka(key) is not None
    assert (len(faults), len(found.warnings)) == (is_refused, not is_refused and not is_setting)
    if is_refused:
        assert "is not supported yet" in faults[0] or "only PEM is read" in faults[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("listeners=SSL://:9092", "--ssl-keystore-location: is missing"),
        ("listeners=PLAINTEXT://:9092,SASL_SSL://:9093", "--ssl-keystore-location: is missing"),
        ("listeners=ssl://:9093", "--ssl-keystore-location: is missing"),
        ("listener.security.protocol.map=PLAINTEXT:SSL", "pass --listener PLAINTEXT=HOST:PORT"),
        ("ssl.keystore.key=-----BEGIN PRIVATE KEY-----marked", "must be file:PATH or env:NAME"),
        ("ssl.key.password=marked", "must be file:PATH or env:NAME"),
        (
            "sasl.enabled.mechanisms=GSSAPI",
            "must be PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
        ),
        ("ssl.enabled.protocols=TLSv1.1", "must be TLSv1.2 or TLSv1.3"),
        ("ssl.cipher.suites=TLS_AES_128_GCM_SHA256", "belongs to TLS 1.3"),
        ("ssl.principal.mapping.rules=RULE:CN", "must be RULE:pattern/replacement/"),
    ],
)
def test_a_fault_of_tls_and_sasl_names_the_fix_and_no_secret(line, words, tmp_path):
    file = tmp_path / "a.properties"
    file.write_text(line)
    found = read("gateway dev", "--config", str(file))
    (fault,) = [*found.faults, *dev.listener_faults(found)]
    assert words in fault
    assert "marked" not in fault


@pytest.mark.parametrize(
    ("key", "value", "is_refused"),
    [
        ("security.inter.broker.protocol", "CLIENT", True),
        ("security.inter.broker.protocol", "OTHER", False),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_listener_whose_protocol_is_protected_is_refused(
    key, value, is_refused, is_first, tmp_path
):
    file = tmp_path / "a.properties"
    lines = [f"{key}={value}", "listener.security.protocol.map=Client:sasl_ssl, OTHER:PLAINTEXT"]
    file.write_text("\n".join(lines if is_first else lines[::-1]))
    found = read("gateway dev", "--config", str(file))
    faults = [*found.faults, *dev.listener_faults(found)]
    line = 1 if is_first else 2
    assert len(faults) == is_refused
    if is_refused:
        assert faults[0].startswith(f"{file}:{line}: ")
        assert "is not supported yet: without it the port is open" in faults[0]


def test_a_value_with_a_nul_is_refused(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text('rack = "a\\u0000b"\nworkers = 2\n')
    (fault,) = read("gateway serve", "--config", str(file)).faults
    assert fault.startswith(f"{file}:1: rack = ")
    assert fault.endswith(": must not have a NUL character")


def test_a_misspelt_key_of_kafka_is_a_fault_with_the_nearest_one(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("num.partition=3\nbroker.rak=r1\n")
    assert read("gateway serve", "--config", str(file)).faults == [
        f"{file}:1: num.partition: unknown key; did you mean num.partitions?",
        f"{file}:2: broker.rak: unknown key; did you mean broker.rack?",
    ]


# -- the commands ----------------------------------------------------------------------------------


def run(words, environment=None):
    tool, *rest = words.split()
    root = {"gateway": gateway, "bookie": bookie}[tool]
    done = CliRunner(env=environment).invoke(root, rest, prog_name=tool)
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("command", TABLES)
def test_settings_are_printed_and_nothing_is_made(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, errors = run(f"{command} --print-config -o json")
    assert (code, errors) == (0, "")
    rows = json.loads(out)["settings"]
    assert [row["setting"] for row in rows] == [row.name for row in TABLES[command][1]]
    assert {row["origin"] for row in rows} == {"default"}
    code, out, errors = run(f"{command} --print-config")
    assert (code, errors) == (0, "")
    assert out.splitlines()[0].split() == ["SETTING", "VALUE", "ORIGIN"]
    assert len(out.splitlines()) == len(rows) + 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", TABLES)
def test_what_is_printed_as_toml_gives_the_same_settings(command, tmp_path):
    _, table = TABLES[command]
    values = {row.name: two_values(row)[0] for row in table}
    words = [Place(command, name, tmp_path).flag(text) for name, text in values.items()]
    before = read(command, *words)
    assert before.faults == []
    assert not any(before.is_default(row.name) for row in table)
    file = tmp_path / "again.toml"
    file.write_text(report(before, "toml"))
    after = read(command, "--config", str(file))
    assert after.faults == after.warnings == []
    assert [after[row.name] for row in table] == [before[row.name] for row in table]
    assert report(after, "toml").splitlines() == [
        re.sub("# flag$", f"# file {file}:{number}", line)
        for number, line in enumerate(report(before, "toml").splitlines(), 1)
    ]


@pytest.mark.parametrize("command", TABLES)
def test_faults_end_with_78_also_when_settings_are_to_be_printed(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text("zzzz = 1\nsession = 'x'\nport = 'y'\n")
    for more in ("", " --print-config"):
        code, out, errors = run(f"{command} --config a.toml{more}")
        assert (code, out) == (78, "")
        tool = command.partition(" ")[0]
        assert f"{tool}: a.toml:1: zzzz: unknown key\n" in errors
        assert len(errors.splitlines()) >= 2
    code, out, errors = run(f"{command} --config a.toml --print-config -o json")
    assert (code, out) == (78, "")
    assert {json.loads(line)["code"] for line in errors.splitlines()} == {"CONFIG"}
    assert [each.name for each in tmp_path.iterdir()] == ["a.toml"]


def test_variables_are_read_by_the_commands_themselves():
    for command, (_, table) in TABLES.items():
        row = next(iter(table))
        text = two_values(row)[0]
        code, out, _ = run(f"{command} --print-config -o json", {row.environment: text})
        assert code == 0
        assert json.loads(out)["settings"][0]["origin"] == f"environment {row.environment}"


def test_audit_prints_toml_only_of_settings():
    code, out, errors = run("bookie audit -o toml")
    assert (code, out) == (78, "")
    assert errors == "bookie: --output toml: is only for --print-config; pass text or json\n"


def test_a_worker_keeps_the_settings_of_its_supervisor_when_the_file_changes(tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("zookeeper = 'z:1'\nworkers = 3\nrack = 'r 1'\nsession = '400ms'\n")
    first = read("gateway serve", "--config", str(file))
    file.write_text("nonsense\n")
    words = ["--config", str(file), "--workers", "1", "--supervisor", "1"]
    worker = read("gateway serve", *words, environment=first.of_file())
    assert worker.faults == []
    assert [worker[name] for name in ("zookeeper", "workers", "rack", "session")] == [
        *("z:1", 1, "r 1", 0.4)
    ]


def test_a_start_without_a_file_loads_no_parser_of_files():
    loaded = "{'tomllib', 'decimal', 'ledger.command_line.settings_file'} & sys.modules.keys()"
    code = (
        "import sys; from ledger.command_line.program import flags_of; "
        "from gateway.process import dev; settings = dev.settings_of(flags_of(dev.dev, [])); "
        f"dev.config_of(settings); print({loaded})"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"set()\n"


def test_a_gateway_runs_as_its_file_says(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'port = 0\nledger-port = "off"\nhttp-port = "off"\ndata = "{tmp_path}/data"\nnode.id = 7\n'
        "num.partitions = 5\nlog.retention.hours = 1\n"
    )
    argv = [sys.executable, "-m", "gateway", "dev", "--config", str(file)]
    process = Process(argv, tmp_path / "log", errors=tmp_path / "errors")
    try:
        process.wait_output("[KafkaServer id=7] started", START_S_MAX)
        found = re.search(r"bootstrap\.servers=(\S+) data=(\S+)", process.output())
        assert found is not None
        assert found[2] == f"{tmp_path}/data"
        assert "ledgers: " not in process.output()
        client = AdminClient({"bootstrap.servers": found[1], "log_level": 0})
        resource = ConfigResource(ResourceType.BROKER, "7")
        (answered,) = client.describe_configs([resource]).values()
        assert answered.result(START_S_MAX)["num.partitions"].value == "5"
    finally:
        process.stop(START_S_MAX)
    assert (tmp_path / "errors").read_text() == (
        f"gateway: warning: {file}:7: log.retention.hours: has no effect here\n"
    )
