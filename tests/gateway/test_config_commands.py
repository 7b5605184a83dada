"""Goal: `gateway config check` finds what a start would refuse, with file, line and fix, and starts
nothing; `gateway config show` prints what `--print-config` prints.

Method: the commands in this process, and both tables of settings.
"""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gateway.process.cli import program

SECRET = "marked-secret-7Qz"


def gateway(*words, **variables):
    done = CliRunner().invoke(program, [*map(str, words)], prog_name="gateway", env=variables)
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def written(tmp_path):
    def write(text, name="gateway.toml"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


def test_a_file_without_faults_is_one_line(written):
    file = written("port = 9192\n'num.partitions' = 6\n")
    assert gateway("config", "check", file) == (
        *(0, f"{file}: no faults in 2 settings of `gateway dev`\n", ""),
    )
    code, out, _ = gateway("config", "check", file, "-o", "json")
    found = {"file": str(file), "command": "dev", "settings": 2, "warnings": 0}
    assert (code, json.loads(out)) == (0, found)


def test_a_file_that_names_zookeeper_is_one_of_serve(written):
    for text in ("zookeeper = 'z:1'\n", "'zookeeper.connect' = 'z:1'\n"):
        code, out, _ = gateway("config", "check", written(text))
        assert (code, out.endswith("`gateway serve`\n")) == (0, True)
    code, _, errors = gateway("config", "check", written("zookeeper = 'z:1'\n"), "--of", "dev")
    assert (code, "zookeeper" in errors) == (78, True)


def test_all_faults_are_reported_at_once_with_their_lines(written):
    file = written(
        "prot = 1\nnode-id = 'x'\nhost = '0.0.0.0'\nmemory = '3'\n"
        "group-min-session-timeout = '5'\nssl-client-auth = 'maybe'\n"
    )
    code, out, errors = gateway("config", "check", file)
    lines = errors.splitlines()
    assert (code, out) == (78, "")
    assert f"gateway: {file}:1: prot: unknown key; did you mean port?" in lines
    assert [line.split(":")[2] for line in lines if str(file) in line] == [*"123456"] or {
        line.split(":")[2] for line in lines
    } >= {*"123456"} - {"3"}


def test_an_exposed_listener_is_reported_beside_other_faults(written):
    file = written("prot = 1\nhost = '0.0.0.0'\n")
    code, _, errors = gateway("config", "check", file)
    assert code == 78
    assert f"{file}:1: prot" in errors
    assert f'{file}:2: host = "0.0.0.0": other machines can reach it without TLS' in errors


def test_faults_are_json_if_asked_for(written):
    code, out, errors = gateway("config", "check", written("prot = 1\n"), "-o", "json")
    assert (code, out, json.loads(errors)["code"]) == (78, "", "CONFIG")


def test_variables_have_no_part_in_it(written):
    file = written("port = 1\n")
    variables = {"GATEWAY_PORT": "x", "KAFKA_NODE_ID": "y", "GATEWAY_CONFIG": "z"}
    assert gateway("config", "check", file, **variables)[0] == 0


@pytest.mark.parametrize("text", ["port = ", "\0", "[a"])
def test_a_file_that_is_no_toml_names_its_line(written, text):
    file = written(text)
    code, _, errors = gateway("config", "check", file)
    assert (code, errors.startswith(f"gateway: {file}:1: ")) == (78, True)


def test_a_missing_file_is_one_line(tmp_path):
    code, _, errors = gateway("config", "check", tmp_path / "none.toml")
    assert (code, len(errors.splitlines())) == (78, 1)


def test_it_starts_and_makes_nothing(written, tmp_path):
    file = written(f"secure = true\ndata = '{tmp_path}/data'\n")
    assert gateway("config", "check", file)[0] == 0
    assert [each.name for each in tmp_path.iterdir()] == ["gateway.toml"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("max.connections.per.ip = 10", "max.connections = 100"),
        ("max.connections = 100", "max.connections.per.ip = 10"),
        ("zookeeper.connect = 'z:1'", "zookeeper = 'z:1'"),
    ],
)
def test_a_key_that_is_a_table_too_is_told_to_be_quoted(written, first, second):
    file = written(f"port = 1\n{first}\n{second}\n")
    code, _, errors = gateway("config", "check", file)
    longer = max(first, second, key=lambda each: len(each.partition(" =")[0])).partition(" =")[0]
    assert code == 78
    assert errors.startswith(f"gateway: {file}:3: ")
    assert f'in line 2; quote both, as "{longer}" = ...' in errors
    quoted = [f'"{each.partition(" =")[0]}" ={each.partition(" =")[2]}' for each in (first, second)]
    errors = gateway("config", "check", written("\n".join(quoted)))[2]
    assert "quote" not in errors and "overwrite" not in errors


def test_what_is_shown_equals_the_printed_settings(written):
    file = written("port = 9192\n")
    variables = {"GATEWAY_NODE_ID": "3", "KAFKA_NUM_PARTITIONS": "4"}
    for form in ("table", "json", "toml"):
        shown = gateway("config", "show", "--config", file, "-o", form, **variables)
        printed = gateway("dev", "--config", file, "--print-config", "-o", form, **variables)
        assert shown == printed
        assert shown[0] == 0
    rows = json.loads(gateway("config", "show", "-o", "json", "--of", "serve")[1])["settings"]
    assert "zookeeper" in {each["setting"] for each in rows}


def test_a_secret_that_was_written_out_is_shown_nowhere(written):
    text = f"ssl-key-password = '{SECRET}'\n'inter-broker-password' = '{SECRET}'\n"
    for words in (("check", written(text)), ("show", "--config", written(text))):
        code, out, errors = gateway("config", *words)
        assert code == 78
        assert SECRET not in out + errors
        assert "[hidden]" in errors


def test_the_peer_address_and_the_name_of_a_listener_exclude_each_other(written):
    file = written(
        "zookeeper = 'z:1'\ninter-broker-listener-name = 'PLAINTEXT'\npeer-host = 'h'\n"
        "'peer-port' = 7\n"
    )
    code, _, errors = gateway("config", "check", file)
    assert (code, errors.count("cannot be used with")) == (78, 2)
    assert f"{file}:3: peer-host" in errors and f"{file}:4: peer-port" in errors


LIMITS = {
    "group.max.size": ("7", "groups", "members_max", 7),
    "group.coordinator.rebalance.protocols": (
        *("classic,streams", "groups", "rebalance_protocols", ("classic", "streams")),
    ),
    "group.consumer.migration.policy": ("UPGRADE", "groups", "migration_policy", "upgrade"),
    "group.consumer.max.size": ("8", "groups", "consumer_members_max", 8),
    "group.consumer.assignors": ("range", "groups", "consumer_assignors", ("range",)),
    "group.consumer.session.timeout.ms": ("8000", "groups", "consumer_session_timeout_ms", 8_000),
    "group.consumer.min.session.timeout.ms": (
        *("7000", "groups", "consumer_session_timeout_ms_min", 7_000),
    ),
    "group.consumer.max.session.timeout.ms": (
        *("9000", "groups", "consumer_session_timeout_ms_max", 9_000),
    ),
    "group.consumer.heartbeat.interval.ms": (
        *("800", "groups", "consumer_heartbeat_interval_ms", 800),
    ),
    "group.consumer.min.heartbeat.interval.ms": (
        *("700", "groups", "consumer_heartbeat_interval_ms_min", 700),
    ),
    "group.consumer.max.heartbeat.interval.ms": (
        *("900", "groups", "consumer_heartbeat_interval_ms_max", 900),
    ),
    "group.consumer.assignment.interval.ms": (
        *("0", "groups", "consumer_assignment_interval_ms", 0),
    ),
    "group.consumer.min.assignment.interval.ms": (
        *("0", "groups", "consumer_assignment_interval_ms_min", 0),
    ),
    "group.consumer.max.assignment.interval.ms": (
        *("16000", "groups", "consumer_assignment_interval_ms_max", 16_000),
    ),
    "offset.metadata.max.bytes": ("9", "groups", "metadata_bytes_max", 9),
    "offsets.retention.minutes": ("90", "groups", "offsets_retention_minutes", 90),
    "transaction.max.timeout.ms": ("5000", "transaction", "timeout_ms_max", 5_000),
    "transactional.id.expiration.ms": ("6000", "transaction", "id_expiration_ms", 6_000),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        *("7000", "transaction", "scan_ms", 7_000),
    ),
    "connections.max.idle.ms": ("8000", "connection", "idle_s_max", 8.0),
}


def test_the_limits_of_groups_and_transactions_are_kafkas_keys(written):
    from gateway.process import dev
    from ledger.command_line.program import flags_of

    text = "".join(f"{key}={value}\n" for key, (value, *_) in LIMITS.items())
    file = written(text, "server.properties")
    settings = dev.settings_of(flags_of(dev.dev, ["--config", str(file)]))
    assert (settings.faults, settings.warnings) == ([], [])
    config = dev.config_of(settings)
    for _, part, field, expected in LIMITS.values():
        assert getattr(getattr(config, part), field) == expected, field


def test_a_broker_without_classic_groups_is_refused(written):
    file = written("group-coordinator-rebalance-protocols = ['consumer']\n")
    code, _, errors = gateway("config", "check", file)
    assert code == 78
    assert f"{file}:1: group-coordinator-rebalance-protocols" in errors
    assert "must contain classic" in errors


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("group.consumer.assignors=sticky", "must be uniform or range"),
        ("group.consumer.assignors=uniform,sticky", "sticky: must be uniform or range"),
        ("group.consumer.assignors=range,range", "must not name range twice"),
        ("group.consumer.assignors=uniform,,range", "must be uniform or range"),
        ("group.consumer.assignors=", "must be uniform or range"),
        (
            "group.consumer.session.timeout.ms=44999",
            "must be at least --group-consumer-min-session-timeout 45s",
        ),
        (
            "group.consumer.session.timeout.ms=61000",
            "must be at most --group-consumer-max-session-timeout 1m",
        ),
        (
            "group.consumer.heartbeat.interval.ms=4999",
            "must be at least --group-consumer-min-heartbeat-interval 5s",
        ),
        (
            "group.consumer.heartbeat.interval.ms=45000\n"
            "group.consumer.max.heartbeat.interval.ms=45000",
            "must be less than --group-consumer-session-timeout 45s",
        ),
        (
            "group.consumer.max.assignment.interval.ms=999",
            "must be at least --group-consumer-assignment-interval 1s",
        ),
        (
            "group.consumer.min.assignment.interval.ms=15001",
            "must be at most --group-consumer-max-assignment-interval 15s",
        ),
    ],
)
def test_settings_of_consumer_groups_that_cannot_be_are_refused(written, text, told):
    file = written(f"{text}\n", "server.properties")
    code, _, errors = gateway("config", "check", file)
    assert code == 78
    assert f"{file}:1: group.consumer." in errors
    assert told in errors


def test_an_empty_list_of_assignors_is_refused(written):
    file = written("group-consumer-assignors = []\n")
    code, _, errors = gateway("config", "check", file)
    assert code == 78
    assert "must not be empty; name uniform or range" in errors


def test_kafkas_classes_of_assignors_are_their_names(written):
    package = "org.apache.kafka.coordinator.group.assignor"
    text = f"group.consumer.assignors={package}.RangeAssignor, {package}.UniformAssignor\n"
    file = written(text, "server.properties")
    code, out, _ = gateway("config", "show", "--config", file, "-o", "json")
    assert code == 0
    rows = {each["setting"]: each["value"] for each in json.loads(out)["settings"]}
    assert rows["group-consumer-assignors"] == "range,uniform"


def test_an_unknown_variable_of_kafka_names_the_nearest(tmp_path):
    variables = {"KAFKA_NUM_PARTITION": "4", "KAFKA_QQQQ": "1"}
    code, _, errors = gateway("config", "show", **variables)
    assert code == 0
    assert "did you mean KAFKA_NUM_PARTITIONS?" in errors
    assert "KAFKA_QQQQ: Kafka's broker has no key qqqq; it has no effect here\n" in errors
