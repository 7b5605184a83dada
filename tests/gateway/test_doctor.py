"""Goal: `gateway doctor` finds real faults, prints their fixes, and its bundle has no secrets.

Method: the command runs against one gateway process, a name that does not resolve, a limit of 64
files, a full disk in memory and settings that do nothing. Secrets and records go in, and are
looked for in every part of the bundle. Faults that take long are in test_doctor_proof.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import tarfile
import threading
import time

import jsonschema
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from gateway.admin.doctor_findings import BY_NAME, LOCAL
from gateway.admin.doctor_shapes import FOUND, LISTED
from tests.gateway.admin_commands import consumer, invoke, produced
from tests.gateway.broken_broker import BrokenBroker
from tests.ledger.printing import Terminal
from tests.peers import install
from tests.peers.gateway import Gateway

pytestmark = pytest.mark.process
BAD = "no-such-host.invalid"
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("doctor") / "data", ["--metrics-port", "0"]) as broker:
        yield broker


def doctor(broker, *words):
    """The exit code, and each row by its check."""
    bootstrap = broker if isinstance(broker, str) else broker.bootstrap
    code, out, _ = invoke("doctor", "-o", "json", *words, bootstrap=bootstrap)
    return code, {row["check"]: row for row in json.loads(out)}


def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def set_config(broker, kind, name, key, value, op=AlterConfigOpType.SET):
    entry = ConfigEntry(key, value, incremental_operation=op)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    client = admin(broker)
    for done in client.incremental_alter_configs([resource]).values():
        done.result(60)


def test_a_healthy_gateway_fails_no_check(gateway):
    produced(gateway, "orders", 3)
    code, rows = doctor(gateway, "--data", str(gateway.data.parent))
    assert list(rows) == list(BY_NAME)
    assert {name: row for name, row in rows.items() if row["state"] in ("fail", "unknown")} == {}
    assert code == 0
    jsonschema.validate(list(rows.values()), FOUND.schema())
    assert rows["clocks"]["finding"].startswith("3 clocks within ")
    assert rows["versions"]["finding"].startswith("all processes are of release ")
    assert rows["leaders"]["fix"] is None


def test_people_get_a_table_and_one_sentence(gateway):
    code, out, errors = invoke(
        *("doctor", "--only", "leaders", "--only", "files"), bootstrap=gateway.bootstrap
    )
    lines = out.splitlines()
    assert lines[0].split() == ["CHECK", "STATE", "FINDING", "FIX"]
    assert [line.split()[0] for line in lines[1:3]] == ["files", "leaders"]
    assert lines[-1].startswith("None of 2 checks failed")
    assert (code, errors) == (0, "")


def test_list_names_the_checks_without_a_server():
    code, out, _ = invoke("doctor", "--list", "-o", "json")
    assert code == 0
    assert [row["check"] for row in json.loads(out)] == list(BY_NAME)
    jsonschema.validate(json.loads(out), LISTED.schema())
    assert invoke("doctor", "--list", "--only", "disk", "--columns", "check")[1].split() == [
        "CHECK",
        "disk",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "disc"], "--only disc: there is no such check: did you mean disk?"),
        (["--data", "/no/such"], "--data /no/such: no such directory"),
        (["--bundle", "/no/such/b.tar.gz"], "must be a file in a directory that exists"),
        (["--log", "/dev/null"], "pass --bundle FILE.tar.gz too"),
        (["-b", "nonsense"], "--bootstrap: 'nonsense' is not host:port"),
        (["-z", "nonsense"], "--zookeeper nonsense: must be host:port"),
        (["--timeout", "0s"], "--timeout 0s"),
    ],
)
def test_a_wrong_option_is_one_line(words, message):
    code, out, errors = invoke("doctor", *words)
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert message in errors


def test_without_a_server_the_checks_of_this_machine_are_done(tmp_path):
    code, rows = doctor("127.0.0.1:1", "--data", str(tmp_path))
    assert code == 69
    assert rows["bootstrap"]["state"] == "fail"
    assert "Connection refused" in rows["bootstrap"]["finding"]
    assert all(rows[name]["state"] in ("ok", "warn") for name in LOCAL)
    others = rows.keys() - LOCAL - {"bootstrap", "zookeeper"}
    assert {rows[name]["state"] for name in others} == {"unknown"}
    assert doctor("127.0.0.1:1", "--data", str(tmp_path), "--only", "disk")[0] == 0


def test_a_wrong_name_fails():
    code, rows = doctor(f"{BAD}:9092", "--only", "dns", "--only", "bootstrap")
    assert code == 69
    assert [row["state"] for row in rows.values()] == ["fail", "fail"]
    assert BAD in rows["dns"]["finding"]


def test_a_server_that_hangs_up_gets_the_fix_for_its_protocol(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        closing = threading.Thread(target=lambda: server.accept()[0].close())
        closing.start()
        _, rows = doctor(f"127.0.0.1:{server.getsockname()[1]}", "--only", "bootstrap")
        closing.join(60)
    assert rows["bootstrap"]["state"] == "fail"
    assert rows["bootstrap"]["fix"].startswith("set security.protocol with --command-config")


def test_a_gateway_that_refuses_to_report_is_not_taken_for_kafka(tmp_path):
    """A user without the right gets its name from each check that needs it."""
    rights = ("--authorizer", "standard", "--super-users", "User:ops")
    checks = ("clocks", "zookeeper", "versions", "racks", "ledgers", "settings")
    only = [word for check in checks for word in ("--only", check)]
    with Gateway(tmp_path / "data", rights) as broker:
        _, rows = doctor(broker, *only)
    assert {row["state"] for row in rows.values()} == {"unknown"}
    for check in checks:
        right = "DESCRIBE_CONFIGS" if check == "settings" else "DESCRIBE"
        assert f"gateway 0: this user lacks the right {right} on" in rows[check]["finding"], rows
        assert "Kafka" not in rows[check]["finding"]


class Misplaced(BrokenBroker):
    """A broker that gives this host and port to clients."""

    def __init__(self, host, port):
        super().__init__(b"")
        self._place = {"host": host, "port": port}

    def _metadata(self, request):
        reply = super()._metadata(request)
        return {**reply, "brokers": [{**each, **self._place} for each in reply["brokers"]]}


@pytest.mark.parametrize(
    ("host", "port"),
    [
        *(("http://x", 1), ("", 1), ("127.0.0.1", 0), ("127.0.0.1:41111,127.0.0.1", 1)),
        *(("a..b", 1), ("x@h", 1), ("::1", 65_536), ("[::1]", 1), ("a\0b", 1), (" h", 1)),
    ],
)
def test_a_broker_without_an_address_fails_one_check_and_breaks_none(host, port):
    checks = ("address", "dns", "clocks", "versions", "files")
    only = [word for check in checks for word in ("--only", check)]
    with Misplaced(host, port) as broker:
        _, rows = doctor(broker, *only)
    assert [each for each in rows.values() if "failed itself" in each["finding"]] == []
    assert rows["address"]["state"] == "fail"
    assert "is not host:port" in rows["address"]["finding"]
    assert rows["address"]["fix"].startswith("start the gateway with `--advertised-host`")
    assert rows["clocks"]["state"] == "unknown"
    assert "is not host:port" in rows["clocks"]["finding"]


def test_a_terminal_shows_what_to_do_in_full_below_the_table():
    screen = Terminal(40)
    argv = [install.gateway_python(), "-m", "gateway", "doctor", "-b", f"{BAD}:9092"]
    done = subprocess.run([*argv, "--only", "dns"], stdout=screen.stream, timeout=60)
    lines = screen.shown().splitlines()
    assert done.returncode == 1
    assert any(line.endswith("…") for line in lines)
    (fix,) = [line for line in lines if line.startswith("  fix: ")]
    assert not fix.endswith("…") and len(fix) > 40


def test_a_low_limit_of_open_files_fails(gateway):
    argv = [install.gateway_python(), "-m", "gateway", "doctor", "--only", "files"]
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", *argv],
        env={**os.environ, "GATEWAY_BOOTSTRAP": gateway.bootstrap},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "may open 64 files" in done.stdout


def test_a_small_full_disk_fails(gateway, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=True)
    try:
        words = ["--only", "disk", "--only", "sync", "--data", str(place)]
        code, rows = doctor(gateway, *words)
        assert list(place.iterdir()) == []
    finally:
        subprocess.run(["umount", place], check=True)
    assert code == 1
    assert rows["disk"]["finding"].startswith(f"{place}: ")
    assert "free of 1.0MiB" in rows["disk"]["finding"]
    assert "No space left" in rows["sync"]["finding"] or "cut short" in rows["sync"]["finding"]
    assert [row["state"] for row in rows.values()] == ["fail", "fail"]


def test_settings_that_do_nothing_are_found(gateway):
    produced(gateway, "idle", 1)
    set_config(gateway, ResourceType.TOPIC, "idle", "flush.ms", "5")
    set_config(gateway, ResourceType.TOPIC, "idle", "retention.ms", str(7 * DAY_MS))
    code, rows = doctor(gateway, "--only", "settings")
    assert (code, rows["settings"]["state"]) == (0, "warn")
    assert rows["settings"]["finding"] == "1 setting without effect: flush.ms of topic idle"
    remove = AlterConfigOpType.DELETE
    set_config(gateway, ResourceType.TOPIC, "idle", "flush.ms", None, remove)


def test_a_group_that_is_behind_is_found_with_its_age(gateway):
    old_ms = int(time.time() * 1000) - DAY_MS // 6
    produced(gateway, "late", 10, timestamp=old_ms)
    reader = consumer(gateway, "behind")
    reader.commit(offsets=[TopicPartition("late", 0, 5)], asynchronous=False)
    reader.close()
    code, rows = doctor(gateway, "--only", "lag")
    assert (code, rows["lag"]["state"]) == (0, "warn")
    finding = "group behind is 4 h behind in late-0 (5 records), without members"
    assert rows["lag"]["finding"] == finding


SECRETS = ["hunter2-keystore", "hunter2-log", "hunter2-commit", "hunter2-record", "hunter2-pem"]
KEYSTORE = "listener.name.external.ssl.keystore.password"


def test_a_bundle_has_no_records_and_no_secrets(gateway, tmp_path):
    produced(gateway, "private", 1)
    for number in range(3):
        reader = consumer(gateway, f"group-{number}")
        place = TopicPartition("private", 0, 1, metadata="hunter2-commit")
        reader.commit(offsets=[place], asynchronous=False)
        reader.close()
    producer = Producer({"bootstrap.servers": gateway.bootstrap})
    producer.produce("private", "hunter2-record", key="hunter2-record", partition=0)
    assert producer.flush(60) == 0
    set_config(gateway, ResourceType.BROKER, "0", KEYSTORE, "hunter2-keystore")
    log = tmp_path / "gateway.log"
    log.write_text(
        "started\npassword=hunter2-log\nhttp://u:hunter2-log@host/\n"
        "-----BEGIN PRIVATE KEY-----\nhunter2-pem\n-----END PRIVATE KEY-----\nended\n"
    )
    bundle = tmp_path / "doctor.tar.gz"
    words = ["--bundle", str(bundle), "--log", str(log), "--only", "leaders"]
    code, _, errors = invoke("doctor", *words, bootstrap=gateway.bootstrap)
    remove = AlterConfigOpType.DELETE
    set_config(gateway, ResourceType.BROKER, "0", KEYSTORE, None, remove)
    assert code == 0
    assert errors.startswith(f"wrote {bundle}: ") and "left out" not in errors
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["doctor.tar.gz", "gateway.log"]
    parts = contents(bundle)
    assert set(parts) == {
        "doctor/MANIFEST",
        "doctor/report.json",
        "doctor/versions.json",
        "doctor/brokers.json",
        "doctor/settings/brokers.json",
        "doctor/settings/topics.json",
        "doctor/topics.json",
        "doctor/groups.json",
        "doctor/bookies.json",
        "doctor/ledgers.json",
        "doctor/metrics/gateway-0.txt",
        "doctor/logs/1-gateway.log",
    }
    whole = "\n".join(parts.values())
    assert [secret for secret in SECRETS if secret in whole] == []
    assert "private" in parts["doctor/topics.json"]
    assert "group-1" in parts["doctor/groups.json"]
    assert "kafka_" in parts["doctor/metrics/gateway-0.txt"]
    assert parts["doctor/logs/1-gateway.log"].split()[0] == "started"
    settings = json.loads(parts["doctor/settings/brokers.json"])["0"]
    assert settings["node.id"] == "0"
    assert settings.get(KEYSTORE, "(hidden)") == "(hidden)"


def contents(bundle):
    with tarfile.open(bundle) as archive:
        members = archive.getmembers()
        return {each.name: archive.extractfile(each).read().decode() for each in members}


def test_a_bundle_stays_within_its_bound_and_names_what_is_left_out(gateway, tmp_path):
    logs = []
    for number in range(12):
        log = tmp_path / f"{number}.log"
        log.write_text((os.urandom(50).hex() + "\n") * 30_000)
        logs += ["--log", str(log)]
    with open(tmp_path / "0.log", "ab") as file:
        file.write(b"\nthe last line\n")
    bundle = tmp_path / "doctor.tar.gz"
    words = ["--bundle", str(bundle), *logs, "--only", "leaders"]
    code, _, errors = invoke("doctor", *words, bootstrap=gateway.bootstrap)
    assert code == 0
    assert bundle.stat().st_size <= 20 * 1024 * 1024
    parts = contents(bundle)
    assert parts["doctor/logs/1-0.log"].endswith("the last line\n\n")
    manifest = parts["doctor/MANIFEST"]
    left_out = [line for line in manifest.splitlines() if "beyond the bound" in line]
    assert len(left_out) == 12 - sum(name.startswith("doctor/logs/") for name in parts)
    assert left_out and f", {len(left_out)} left out" in errors


def test_a_bundle_without_a_server_has_the_report_and_the_reasons(tmp_path):
    bundle = tmp_path / "doctor.tar.gz"
    bundle.write_text("an older one")
    code, out, _ = invoke("doctor", "--only", "dns", "--bundle", str(bundle), "-o", "json")
    assert (code, json.loads(out)[0]["check"]) == (0, "dns")
    parts = contents(bundle)
    assert set(parts) == {"doctor/MANIFEST", "doctor/report.json"}
    assert "topics.json: no server at 127.0.0.1:1" in parts["doctor/MANIFEST"]


def test_a_bundle_that_cannot_be_written_is_one_line_and_leaves_nothing(gateway, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", small], check=True)
    try:
        (small / "fill").write_bytes(bytes(4096))
        words = ["--only", "dns", "--bundle", str(small / "b.tar.gz")]
        code, out, errors = invoke("doctor", *words, bootstrap=gateway.bootstrap)
        assert [each.name for each in small.iterdir()] == ["fill"]
    finally:
        subprocess.run(["umount", small], check=True)
    assert (code, errors.count("\n")) == (74, 1)
    assert "No space left on device" in errors
    assert out.startswith("CHECK")
