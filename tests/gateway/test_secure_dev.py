"""Goal: `gateway dev --secure` makes its files at once and once, keeps secrets to their owner, and
refuses settings that contradict it.

Method: the configuration in this process, and certificates by OpenSSL and `cryptography`; starts
that are cut short are planted. Clients are in tests/compat/test_secure_dev.py.
"""

from __future__ import annotations

import datetime
import json
import os
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from gateway.config import GatewayConfig, HttpConfig, Listener
from gateway.core.scram_credentials import Mechanism
from gateway.process import dev, dev_authority, secure_dev
from gateway.process.run import ConfigFault
from gateway.security.client_keys import link_security
from gateway.security.tls_contexts import client_context, server_context
from gateway.settings.scram_users import ScramUsers
from ledger.command_line.program import flags_of
from ledger.command_line.properties import parse_properties
from tests.sim.metadata import SimMetadata

START_S_MAX = 60


def config_of(data, *listeners, **options):
    made = listeners or (Listener("SASL_SSL", "127.0.0.1", 0, protocol="SASL_SSL"),)
    return GatewayConfig(data=data, listeners=made, ledger_port=3181, **options)


def content(place):
    return {each.name: each.read_bytes() for each in place.iterdir()}


def names_in(place):
    found = x509.load_pem_x509_certificate((place / "server.pem").read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return {*names.get_values_for_type(x509.DNSName), *map(str, addresses)}


@pytest.fixture
def first(tmp_path):
    return secure_dev.secured(config_of(tmp_path / "data"))


def test_the_first_start_makes_files_for_their_owner_alone(first, tmp_path):
    place = tmp_path / "data" / "secure"
    assert first.secure == place
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in place.iterdir()}
    assert modes.pop("ca.pem") == 0o644
    assert set(modes.values()) == {0o600}
    assert {"client.properties", "librdkafka.properties", "admin.password"} < set(modes)
    assert [each.name for each in place.parent.iterdir()] == ["secure"]


def test_data_of_an_open_start_is_closed_to_others(tmp_path):
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    names = ("metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-shm")
    for name in names:
        (data / name).touch(mode=0o644)
    secure_dev.secured(config_of(data))
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert {stat.S_IMODE((data / name).stat().st_mode) for name in names} == {0o600}


def test_the_configuration_is_closed_to_all_but_admin(first):
    rules = first.authorization
    assert (rules.authorizer, rules.super_users) == ("standard", ("User:admin",))
    assert not rules.allow_everyone
    assert first.ledger_port is None
    assert first.http.password_file is not None
    server_context(first.tls)
    client_context(first.tls)


def test_later_starts_use_the_same_files_and_import_nothing_to_sign(first, tmp_path):
    place = tmp_path / "data" / "secure"
    before = content(place)
    code = (
        "import sys; from pathlib import Path; from gateway.process import secure_dev;"
        "from gateway.config import GatewayConfig, Listener;"
        "at = Listener('SASL_SSL', '127.0.0.1', 0, protocol='SASL_SSL');"
        "made = GatewayConfig(data=Path(sys.argv[1]), listeners=(at,));"
        "secure_dev.secured(made); print('cryptography' in sys.modules)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "data")]
    assert subprocess.check_output(words, text=True) == "False\n"
    assert content(place) == before


def test_a_plain_start_imports_nothing_of_it(tmp_path):
    names = "'secure_dev', 'dev_authority', 'reload', 'exposure', 'security_faults', 'secure_ports'"
    code = (
        "import sys; from gateway.process import dev;"
        "from ledger.command_line.program import flags_of;"
        f"settings = dev.settings_of(flags_of(dev.dev, ['--data', {str(tmp_path)!r}]));"
        "assert not dev.faults_of(settings); dev.secured(settings, dev.config_of(settings));"
        "import gateway.process.run, gateway.process.embedded;"
        f"found = {{f'gateway.process.{{each}}' for each in ({names})}} | {{'cryptography'}};"
        "print(sorted(found & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_old_clients_of_librdkafka_log_in_by_plain_unless_it_is_left_out(first, tmp_path):
    assert first.sasl.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    file = first.secure / "librdkafka.properties"
    assert "sasl.mechanism=PLAIN\n" in file.read_text()
    again = secure_dev.secured(config_of(tmp_path / "data"), adds_plain=False)
    assert "PLAIN" not in again.sasl.mechanisms
    assert "sasl.mechanism=SCRAM-SHA-512\n" in file.read_text()


def test_two_directories_have_nothing_in_common(first, tmp_path):
    other = secure_dev.secured(config_of(tmp_path / "other"))
    assert not set(content(first.secure).values()) & set(content(other.secure).values())


def test_a_start_that_was_cut_short_leaves_none_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(secure_dev, "_of_clients", lambda *_: {"x/y": b""})
    with pytest.raises(ConfigFault, match="--secure"):
        secure_dev.secured(config_of(tmp_path))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "secure.abcd1234").mkdir()  # a killed one leaves this
    settings = dev.settings_of(flags_of(dev.dev, ["--secure", "--data", str(tmp_path)]))
    assert dev.faults_of(settings) == []


def test_two_starts_at_once_end_with_the_files_of_one(tmp_path, monkeypatch):
    """The other start renames its directory while this one signs."""
    issue, place = dev_authority.issue_server, tmp_path / "secure"

    def beaten(*words):
        monkeypatch.setattr(dev_authority, "issue_server", issue)
        secure_dev.secured(config_of(tmp_path))
        beaten.before = content(place)
        return issue(*words)

    monkeypatch.setattr(dev_authority, "issue_server", beaten)
    made = secure_dev.secured(config_of(tmp_path))
    assert content(place) == beaten.before
    server_context(made.tls)
    assert [each.name for each in tmp_path.iterdir()] == ["secure"]


def test_the_certificate_names_every_address_of_the_listeners(tmp_path):
    at = Listener("OUT", "0.0.0.0", 9092, "kafka.example", 9092, "SASL_SSL")
    inside = Listener("IN", "192.0.2.7", 9093, protocol="SASL_SSL")
    made = secure_dev.secured(config_of(tmp_path, at, inside))
    expected = {"localhost", "127.0.0.1", "::1", "kafka.example", "192.0.2.7"}
    assert expected <= names_in(made.secure)
    assert "0.0.0.0" not in names_in(made.secure)


def test_a_name_more_and_an_end_that_is_near_make_another_certificate(first, tmp_path):
    place, at = first.secure, Listener("SASL_SSL", "127.0.0.1", 0, "more", 1, "SASL_SSL")
    before = content(place)
    secure_dev.secured(config_of(tmp_path / "data", at))
    after = content(place)
    assert "more" in names_in(place)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"server.pem", "server.json"}
    note = json.loads(after["server.json"])
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=29)
    (place / "server.json").write_text(json.dumps(note | {"end": soon.isoformat()}))
    secure_dev.secured(config_of(tmp_path / "data", at))
    assert content(place)["server.pem"] != after["server.pem"]


@pytest.mark.parametrize("note", ["", "{}", "[]", "null", '{"names": 1, "end": 2}', "\xff"])
def test_a_note_that_cannot_be_read_is_made_again(first, tmp_path, note):
    (first.secure / "server.json").write_text(note, encoding="latin-1")
    secure_dev.secured(config_of(tmp_path / "data"))
    assert set(json.loads((first.secure / "server.json").read_text())) == {"names", "end"}


@pytest.mark.parametrize("name", ["ca.pem", "ca.key", "server.pem", "admin.password"])
def test_a_missing_file_is_named_and_nothing_is_made_anew(first, tmp_path, name):
    (first.secure / name).unlink()
    before = content(first.secure)
    with pytest.raises(ConfigFault, match=f"has no {name}; restore it, or remove"):
        secure_dev.secured(config_of(tmp_path / "data"))
    assert content(first.secure) == before


def test_a_password_that_others_can_read_is_refused(first, tmp_path):
    (first.secure / "admin.password").chmod(0o640)
    with pytest.raises(ConfigFault, match="run chmod 600"):
        secure_dev.secured(config_of(tmp_path / "data"))


def test_files_of_clients_are_made_again_if_they_differ_or_are_open(first, tmp_path):
    before = content(first.secure)
    (first.secure / "client.properties").chmod(0o644)
    (first.secure / "librdkafka.properties").write_text("x")
    secure_dev.secured(config_of(tmp_path / "data"))
    assert content(first.secure) == before
    assert stat.S_IMODE((first.secure / "client.properties").stat().st_mode) == 0o600


async def test_admin_gets_the_password_of_its_file_at_each_start(tmp_path):
    config, store = secure_dev.secured(config_of(tmp_path)), SimMetadata()

    async def credentials():
        await secure_dev.write_admin(config, store)
        users = ScramUsers(store)
        await users.load()
        try:
            assert users.names() == ["admin"]
            return [users.credential("admin", each) for each in Mechanism]
        finally:
            await users.close()

    made = await credentials()
    assert None not in made
    assert await credentials() == made  # the password is the same
    (config.secure / "admin.password").write_text("other\n")
    secure_dev.secured(config_of(tmp_path))
    assert await credentials() != made
    assert b"other" in (config.secure / "client.properties").read_bytes()


def test_a_password_that_was_changed_is_the_one_of_the_page_too(first, tmp_path):
    before = (first.secure / "page.passwords").read_bytes()
    secret = first.secure / "admin.password"
    secret.write_text("other\n")
    later = (first.secure / "page.passwords").stat().st_mtime_ns + 1
    os.utime(secret, ns=(later, later))
    secure_dev.secured(config_of(tmp_path / "data"))
    assert (first.secure / "page.passwords").read_bytes() != before


def test_the_page_beyond_loopback_has_tls(tmp_path):
    page = HttpConfig(port=0, host="0.0.0.0", names=("page.example",))
    made = secure_dev.secured(config_of(tmp_path, http=page))
    assert made.http.certificate == made.http.private_key == made.secure / "server.pem"
    assert "page.example" in names_in(made.secure)
    metrics = secure_dev.secured(config_of(tmp_path, host="0.0.0.0", metrics_port=0))
    assert metrics.http.scheme == "https"


def test_our_commands_read_the_file_of_java(tmp_path):
    """Also where the directory has characters that its format escapes."""
    made = secure_dev.secured(config_of(tmp_path / "a \\ü=#"))
    lines = parse_properties((made.secure / "client.properties").read_bytes())
    keys = {each.key: each.value for each in lines}
    assert keys["ssl.truststore.location"] == str(made.secure / "ca.pem")
    security = link_security("SASL_SSL", keys)
    assert security.login is not None
    assert security.login.user == "admin"
    assert security.login.password == (made.secure / "admin.password").read_text().strip()


def test_a_name_that_no_certificate_can_have_is_one_line(tmp_path):
    at = Listener("SASL_SSL", "127.0.0.1", 0, "ü.example", 1, "SASL_SSL")
    with pytest.raises(ConfigFault, match="ASCII") as fault:
        secure_dev.secured(config_of(tmp_path, at))
    assert len(fault.value.faults) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_start_without_it_warns_that_data_is_open_again(first, tmp_path, capsys):
    data = tmp_path / "data"
    settings = dev.settings_of(flags_of(dev.dev, ["--data", str(data)]))
    config = GatewayConfig(data=data)
    assert dev.secured(settings, config) is config
    assert "every client may do everything" in capsys.readouterr().err
    dev.secured(settings, GatewayConfig(data=tmp_path / "other"))
    assert capsys.readouterr().err == ""


def settings_of(tmp_path, *words):
    return dev.settings_of(flags_of(dev.dev, ["--secure", "--data", str(tmp_path), *words]))


def test_every_listener_has_tls_and_a_login(tmp_path):
    for words in (["--host", "0.0.0.0"], ["--listener", "A=0.0.0.0:1", "--listener", "B=h:2"]):
        settings = settings_of(tmp_path, *words)
        assert dev.faults_of(settings) == []
        made = dev.config_of(settings)
        assert {each.protocol for each in made.all_listeners} == {"SASL_SSL"}
    words = ["--http-host", "0.0.0.0", "--http-port", "1", "--http-write"]
    assert dev.faults_of(settings_of(tmp_path, *words)) == []


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--ssl-keystore-location", "/k"], "cannot be used with --secure"),
        (["--inter-broker-user", "x"], "cannot be used with --secure"),
        (["--http-password-file", "/k"], "cannot be used with --secure"),
        (["--ledger-port", "7"], "has no login"),
        (["--authorizer", "none"], "--secure needs standard"),
        (["--sasl-enabled-mechanisms", "PLAIN"], "logs in by SCRAM-SHA-512; add it"),
        (["--listener", "PLAINTEXT=h:1"], "give the listener another name"),
    ],
)
def test_a_setting_that_contradicts_is_refused(tmp_path, words, fault):
    found = dev.faults_of(settings_of(tmp_path, *words))
    assert any(each.startswith(words[0]) and fault in each for each in found), found
    assert not (tmp_path / "secure").exists()


def test_all_contradictions_are_reported_at_once(tmp_path):
    words = ["--ssl-keystore-key", "env:K", "--ledger-port", "7", "--authorizer", "none"]
    assert len(dev.faults_of(settings_of(tmp_path, *words))) == 3
    assert dev.faults_of(settings_of(tmp_path, "--no-ledger-port")) == []


def test_a_print_of_the_settings_makes_nothing(tmp_path, capsys):
    flags = flags_of(dev.dev, ["--secure", "--print-config", "--data", str(tmp_path)])
    assert dev.run(flags) == 0
    assert "secure" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_lines_for_clients_have_no_secret(first):
    lines = secure_dev.hints(first.secure, "0.0.0.0", 9092)
    password = (first.secure / "admin.password").read_text().strip()
    assert not any(password in each for each in lines)
    assert all("localhost:9092" in each for each in lines[1:])
    assert [each.partition(":")[0] for each in lines] == [
        *("secure", "java", "librdkafka", "aiokafka", "gateway")
    ]


def test_a_certificate_is_one_that_strict_clients_take(first):
    context = ssl.create_default_context(cafile=str(first.secure / "ca.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    server = server_context(first.tls)
    ends = [ssl.MemoryBIO() for _ in range(4)]
    client = context.wrap_bio(ends[0], ends[1], server_hostname="127.0.0.1")
    peer = server.wrap_bio(ends[2], ends[3], server_side=True)
    for _ in range(4):
        for side, out, to in ((client, ends[1], ends[2]), (peer, ends[3], ends[0])):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            to.write(out.read())
    assert client.version() == "TLSv1.3"
    assert Path(first.secure / "ca.pem").read_bytes().count(b"BEGIN") == 1
