"""Goal: a bookie does not start with a setting that it cannot keep; it says all that is wrong, each
in one line with its place, and writes nothing.

Method: `bookie check-config` and `bookie serve` as processes over a table of faults; the parsers
themselves over values. No ZooKeeper runs: nothing here gets that far.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from ledger.command_line.program import flags_of
from ledger.command_line.settings import Settings
from ledger.command_line.zookeeper_settings import unreachable
from ledger.errors import MetadataUnavailable
from ledger.node.audit import audit
from ledger.node.config import NodeConfig
from ledger.node.options import AUDIT_OPTIONS, OPTIONS, NodeSettings
from ledger.node.serve import serve
from ledger.repair.config import RepairConfig
from tests.peers.processes import free_port

ENDS_S_MAX = 60


def bookie(*words: object) -> tuple[int, list[str], str]:
    """Exit code, lines on stderr and stdout of a command that ends by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "ledger", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=ENDS_S_MAX,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines(), done.stdout


def settings_of(*words: object) -> NodeSettings:
    return NodeSettings(flags_of(serve, list(map(str, words))))


def audit_settings(*words: object) -> Settings:
    return Settings(flags_of(audit, list(map(str, words))), AUDIT_OPTIONS)


def snapshot(place: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None
        for path in place.rglob("*")
    }


# -- the table of faults ---------------------------------------------------------------------------

FILE_FAULTS = [
    ("prot = 3181", ":1: prot: unknown key; did you mean port?"),
    ("\njournal-snyc = 1", ":2: journal-snyc: unknown key; did you mean journal-sync?"),
    ("[tls]\ncert = 'x'", ":2: tls.cert: unknown key; did you mean tls-cert?"),
    ("zzz = 1", ":1: zzz: unknown key"),
    ("port = '31x81'", ':1: port = "31x81": must be a whole number'),
    ("port = 70000", ":1: port = 70000: must be a whole number between 0 and 65535"),
    ("port = true", ":1: port = true: must be a whole number"),
    ("data = 7", ":1: data = 7: must be text"),
    (
        "gc-interval = 600",
        ":1: gc-interval = 600: 600 has no unit; write 600s, 500ms, 5m, 1h, 7d or PT1H30M",
    ),
    ("gc-interval = 0", ":1: gc-interval = 0: must be between 100ms and 1d"),
    ("gc-interval = '10 days'", ':1: gc-interval = "10 days": must be a duration'),
    ("disk-free-min = '1GB'", ':1: disk-free-min = "1GB": must be a size in B, KiB'),
    ("disk-free-min = -1", ":1: disk-free-min = -1: must be a size"),
    ("entry-max = '1TiB'", ':1: entry-max = "1TiB": must be between 1KiB and 16448KiB'),
    ("disk-used-max = '101%'", ':1: disk-used-max = "101%": must be between 1 % and 100 %'),
    ("disk-used-max = 80", ": must be below disk-used-max"),
    ("disk-used-resume = 96", ":1: disk-used-resume = 96: must be below disk-used-max"),
    ("queue-max = '1MiB'", ':1: queue-max = "1MiB": must be larger than entry-max'),
    ("answers-max = '1MiB'", ':1: answers-max = "1MiB": must be larger than entry-max'),
    ("journal-sync = 'maybe'", ':1: journal-sync = "maybe": must be group or never'),
    ("rack = 'row 1'", ':1: rack = "row 1": must be a path such as /row-1/rack-2'),
    ("name = 'a/b'", ':1: name = "a/b": must be letters'),
    ("zookeeper = 'localhost'", ':1: zookeeper = "localhost": must be host:port'),
    ("allow-insecure = 'yes'", ':1: allow-insecure = "yes": must be true or false'),
    (
        "host = '0.0.0.0'\nallow-insecure = true",
        ':1: host = "0.0.0.0": clients cannot connect to this address',
    ),
    (
        "host = '10.1.2.3'",
        ':1: host = "10.1.2.3": other machines can reach it, so it needs tls-cert',
    ),
    ("port = 1\nport = 2", ":2: Cannot overwrite a value"),
    ("port = 5\ngrpc-port = 5", ":2: grpc-port = 5: must differ from port, which serves TCP"),
    ("grpc-port = 3181", ":1: grpc-port = 3181: must differ from port, which serves TCP"),
    ("bookie-transport = 'udp'", ':1: bookie-transport = "udp": must be tcp or grpc'),
    ("port = ", ":1: Invalid value"),
    ("tls-cert = 'here.pem'", 'tls-cert = "here.pem": needs tls-key and tls-ca too'),
]


@pytest.mark.parametrize(("written", "said"), FILE_FAULTS, ids=[each[0] for each in FILE_FAULTS])
def test_a_fault_in_the_file_is_said_with_its_line(tmp_path, written, said):
    file = tmp_path / "bookie.toml"
    file.write_text(written)
    from ledger.node.checks import offline_faults

    faults = offline_faults(settings_of("--config", file, "--data", tmp_path / "data"))
    assert any(said in fault for fault in faults), faults
    assert all("\n" not in fault for fault in faults)


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_all_faults_are_listed_at_once_and_nothing_is_written(tmp_path, command):
    file = tmp_path / "bookie.toml"
    file.write_text("prot = 1\n# more\ngc-interval = 5\nrack = '/r1'\nname = ''\n")
    before = snapshot(tmp_path)
    code, said, out = bookie(
        *(command, "--config", file, "--data", tmp_path / "new" / "data"),
        *("--port", "99999", "--journal-sync", "often", "--host", "192.0.2.7"),
    )
    assert (code, out) == (78, "")
    starts = [line.removeprefix("bookie: ").removeprefix(f"{file}:") for line in said]
    assert [start.split(":")[0] for start in starts] == [
        *("1", "3", "5", "--port 99999", "--journal-sync often", "--host 192.0.2.7"),
    ]
    assert snapshot(tmp_path) == before


def test_a_sound_configuration_passes_and_writes_nothing(tmp_path):
    file = tmp_path / "bookie.toml"
    file.write_text("port = 3181\nrack = '/row-1'\ngc-interval = '5m'\ndisk-free-min = '1GiB'\n")
    before = snapshot(tmp_path)
    assert bookie("check-config", "--config", file, "--data", tmp_path / "data") == (0, [], "")
    assert snapshot(tmp_path) == before


def test_a_file_that_is_not_there_is_a_fault(tmp_path):
    place = ("--port", 0, "--data", tmp_path)
    code, said, _ = bookie("serve", "--config", tmp_path / "none.toml", *place)
    assert code == 78
    assert said == [f"bookie: --config {tmp_path}/none.toml: No such file or directory"]


def test_an_unknown_flag_is_a_usage_error():
    code, said, _ = bookie("serve", "--prot", "1")
    assert code == 2
    assert "--prot" in said[-1]


def test_an_unknown_command_is_a_usage_error():
    code, said, _ = bookie("server")
    assert (code, len(said)) == (2, 1)


def test_the_help_names_commands_and_every_flag_with_its_default():
    code, said, out = bookie("--help")
    assert (code, said) == (0, [])
    assert {"serve", "audit", "check-config"} <= set(out.split())
    code, _, out = bookie("serve", "--help")
    assert code == 0
    assert all(f"--{row.name}" in out for row in OPTIONS)
    out = " ".join(out.split())
    assert "[default: 256MiB]" in out
    assert out.count("[default: ") == len(["--config", "--output", *OPTIONS])


def test_without_assertions_it_does_not_start():
    done = subprocess.run(
        [sys.executable, "-O", "-m", "ledger", "serve"], capture_output=True, text=True
    )
    assert done.returncode == 78
    assert "python -O" in done.stderr


# -- TLS, port, directory --------------------------------------------------------------------------


def tls(tmp_path, mode=0o600, content="-----BEGIN PRIVATE KEY-----\n") -> list[object]:
    words: list[object] = []
    for name in ("cert", "key", "ca"):
        file = tmp_path / f"{name}.pem"
        file.write_text(content)
        file.chmod(mode if name == "key" else 0o644)
        words += [f"--tls-{name}", file]
    return words


def test_a_key_that_everybody_can_read_is_refused(tmp_path):
    data = ("--data", tmp_path / "data")
    code, said, _ = bookie("check-config", *tls(tmp_path, 0o644), *data)
    assert code == 78
    assert said == [
        f"bookie: --tls-key {tmp_path}/key.pem: other users can read it; "
        f"run chmod 600 {tmp_path}/key.pem",
    ]
    for mode in (0o640, 0o440):  # a Secret of Kubernetes under fsGroup has the second one
        assert bookie("check-config", *tls(tmp_path, mode), *data)[:2] == (78, said)
    assert bookie("check-config", *tls(tmp_path, 0o400), *data) == (0, [], "")


def test_with_tls_it_may_listen_beyond_this_machine(tmp_path):
    words = ("--host", "0.0.0.0", "--advertised-host", "bookie-1", "--data", tmp_path / "data")
    assert bookie("check-config", *tls(tmp_path), *words)[0] == 0
    assert bookie("check-config", "--allow-insecure", *words)[0] == 0
    assert bookie("check-config", *words)[0] == 78


def test_tls_files_that_are_missing_or_no_pem_are_each_named(tmp_path):
    words = tls(tmp_path, content="nothing")
    (tmp_path / "ca.pem").unlink()
    code, said, _ = bookie("check-config", *words, "--data", tmp_path / "data")
    assert code == 78
    assert [line.split(": ")[1].split()[0] for line in said] == [
        "--tls-cert",
        "--tls-key",
        "--tls-ca",
    ]


def test_a_port_in_use_is_said_before_anything_is_written(tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said, _ = bookie("serve", "--port", port, "--data", tmp_path / "data")
    assert code == 78
    assert said == [f"bookie: --port {port}: in use; pass another --port"]
    assert not (tmp_path / "data").exists()


def test_an_address_of_another_machine_is_said_plainly(tmp_path):
    code, said, _ = bookie(
        *("serve", "--host", "192.0.2.1", "--allow-insecure"),
        *("--port", free_port(), "--data", tmp_path / "data"),
    )
    assert code == 78
    assert len(said) == 1
    assert "cannot listen on this address" in said[0]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("letters.txt", b"hello", "it contains letters.txt"),
        ("VERSION", b"somebody else's\n", "VERSION has another format"),
        ("VERSION", None, "format 99 is not supported"),
    ],
)
def test_a_foreign_or_newer_directory_is_refused_and_left_alone(tmp_path, name, content, words):
    from crc32c import crc32c

    if content is None:
        lines = f"bookie directory\nformat 99\ninstance {'00' * 16}\n".encode()
        content = lines + b"crc %08x\n" % crc32c(lines)
    (tmp_path / name).write_bytes(content)
    before = snapshot(tmp_path)
    code, said, _ = bookie("serve", "--port", 0, "--data", tmp_path)
    assert code == 78
    assert len(said) == 1
    assert words in said[0]
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("below", [False, True])
def test_a_file_where_the_directory_should_be_is_refused(tmp_path, below):
    (tmp_path / "file").write_text("")
    data = tmp_path / "file" / "data" if below else tmp_path / "file"
    code, said, _ = bookie("serve", "--port", 0, "--data", data)
    assert (code, len(said)) == (78, 1)
    assert "is not a directory" in said[0]


# -- values ----------------------------------------------------------------------------------------


def test_flags_go_before_the_file_and_the_file_before_the_defaults(tmp_path):
    file = tmp_path / "bookie.toml"
    file.write_text("port = 1\nrack = '/a'\nallow-insecure = true\n")
    config = settings_of("--config", file, "--port", 2, "--no-allow-insecure").config()
    assert (config.port, config.rack, config.allow_insecure) == (2, "/a", False)
    assert config.name == NodeConfig().name


def test_every_setting_has_a_flag_and_every_flag_a_setting():
    assert {row.field for row in OPTIONS} == {each.name for each in fields(NodeConfig)}


def test_the_defaults_are_those_of_the_dataclass():
    assert settings_of().config() == NodeConfig()


def test_the_defaults_of_audit_are_those_of_the_dataclass():
    settings, default = audit_settings(), RepairConfig()
    assert [settings[name] for name in ("delay", "grace", "interval", "full-check-interval")] == [
        *(default.delay_s, default.grace_s, default.interval_s, default.full_check_s)
    ]
    assert settings["ledgers-at-once"] == default.ledgers_at_once
    assert settings["copy-rate"] == default.copy_bytes_per_s_max


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        (("--delay-s", "90"), ("--delay", "90s"), "delay", 90.0),
        (("--delay-s", "0.5"), ("--delay", "500ms"), "delay", 0.5),
        (("--delay-s", "1e3"), ("--delay", "1000s"), "delay", 1000.0),
        (("--grace-s", "60"), ("--grace", "1m"), "grace", 60.0),
        (("--interval-s", "7200"), ("--interval", "2h"), "interval", 7200.0),
        (("--full-check-s", "3600"), ("--full-check-interval", "1h"), "full-check-interval", 3600),
        (("--bytes-per-s", "65536"), ("--copy-rate", "64KiB"), "copy-rate", 65_536),
        (("--bytes-per-s", "64KiB"), ("--copy-rate", "64KiB/s"), "copy-rate", 65_536),
    ],
)
def test_an_old_name_of_a_flag_means_what_it_meant(old, new, name, value):
    assert audit_settings(*old)[name] == audit_settings(*new)[name] == value


def test_a_duration_needs_its_unit():
    assert audit_settings("--delay", "10").faults == [
        "--delay 10: 10 has no unit; write 10s, 500ms, 5m, 1h, 7d or PT1H30M"
    ]
    assert audit_settings("--delay", "0")["delay"] == 0.0


def test_zero_needs_no_unit_in_the_file_either(tmp_path):
    file = tmp_path / "bookie.toml"
    file.write_text("drain = 0\n")
    settings = settings_of("--config", file)
    assert (settings.faults, settings["drain"]) == ([], 0.0)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--delay-s", "-1"), "--delay-s -1: must be between 0ms and 3650d"),
        (("--delay-s=-1e3",), "--delay-s -1e3: must be between 0ms and 3650d"),
        (("--interval-s", "0.05"), "--interval-s 0.05: must be between 100ms and 3650d"),
        (("--delay-s", "x"), "--delay-s x: must be a duration"),
        (("--delay", "-1s"), "--delay -1s: must be between 0ms and 3650d"),
        (("--bytes-per-s", "2TiB"), "--bytes-per-s 2TiB: must be between 0B and 1TiB"),
    ],
)
def test_a_fault_names_the_flag_and_the_value_that_were_typed(words, fault):
    code, (line,), out = bookie("audit", *words)
    assert (code, out) == (78, "")
    assert line.startswith(f"bookie: {fault}")


def test_the_faults_of_settings_are_json_when_json_was_asked_for():
    code, lines, out = bookie("audit", "-o", "json", "--delay", "x", "--session", "10")
    assert (code, out) == (78, "")
    faults = [json.loads(line) for line in lines]
    assert [fault["code"] for fault in faults] == ["CONFIG", "CONFIG"]
    assert faults[0]["error"].startswith("--delay x: must be a duration")
    assert faults[1]["error"].startswith("--session 10: 10 has no unit")


@pytest.mark.proof
def test_no_zookeeper_is_json_when_json_was_asked_for():
    words = ("--once", "--zookeeper", "127.0.0.1:1", "--session", "200ms")
    code, (line,), _ = bookie("audit", "-o", "json", *words)
    assert code == 69
    said = json.loads(line)
    assert said["code"] == "UNREACHABLE"
    assert said["error"].startswith("--zookeeper 127.0.0.1:1: no ZooKeeper within")
    assert said["error"].endswith("; start ZooKeeper, or name servers of it that run")


def test_a_zookeeper_with_a_chroot_that_does_not_answer_is_named_once():
    error = MetadataUnavailable("z:1: no ZooKeeper within 10.0 s")
    assert unreachable("--zookeeper z:1/a", "z:1/a", error) == (
        "--zookeeper z:1/a: no ZooKeeper within 10.0 s; start ZooKeeper, or name servers of it that"
        " run"
    )


def test_a_host_name_that_cannot_be_one_is_a_fault(tmp_path):
    words = ("--host", "a..b", "--allow-insecure", "--data", tmp_path / "data")
    code, said, _ = bookie("serve", *words)
    assert (code, said) == (78, ["bookie: --host a..b: is not the name of a host"])


def test_an_old_and_a_new_name_at_once_are_refused():
    code, said, _ = bookie("audit", "--delay-s", "1", "--delay", "2s")
    assert (code, len(said)) == (2, 1)
    assert "--delay-s is an old name of --delay" in said[0]
