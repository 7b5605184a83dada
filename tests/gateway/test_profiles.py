"""Goal: commands take each setting from its strongest origin, and refuse a file with a fault.

Method: commands in this process, with files of profiles as persons write them; a listener that must
see no connection.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from contextlib import closing

import click
import pytest

from gateway.admin.client import AdminClient
from gateway.admin.client_settings import (
    PROTOCOL,
    SECRET_KEYS,
    ClientSettings,
    UnsupportedSecurity,
)
from gateway.admin.connection_settings import Setting, profile_option, setting
from gateway.admin.ledger_loss_cli import ledger
from gateway.admin.profiles import BYTES_MAX
from gateway.process.cli import program
from gateway.security.link_security import LinkSecurity, Login
from ledger.command_line import units
from ledger.command_line.program import Command, Value, option
from tests.gateway.profile_rig import SECRET, file, gateway, origins, write
from tests.peers.install import ROOT

__all__ = ["file"]

TWO = """\
current = "mine"  # for now

[profiles.mine]
bootstrap = "current:1"
zookeeper = "current:2/chroot"
output = "json"
tls.bookies = "/current"
sasl.security.protocol = "PLAINTEXT"

[profiles.other]
bootstrap = "named:1"
zookeeper = "named:2"
tls = {bookies = "/named", "security.protocol" = "plaintext", ssl.protocol = "TLSv1.3"}
"""
VARIABLES = {
    "bootstrap": "GATEWAY_BOOTSTRAP",
    "zookeeper": "GATEWAY_ZOOKEEPER",
    "tls": "GATEWAY_TLS",
}
VALUES = {
    "bootstrap": ("flag:1", "variable:1", "named:1", "current:1", "127.0.0.1:9092"),
    "zookeeper": ("flag:2", "variable:2", "named:2", "current:2/chroot", None),
    "tls": ("/flag", "/variable", "/named", "/current", None),
}
ORIGINS = ("flag", "environment", "profile", "current", "default")


def parsed(words, environment, monkeypatch) -> click.Context:
    """The context of `gateway ledger list`, once its options are read."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return ledger.commands["list"].make_context("list", list(words))


@pytest.mark.parametrize("key", VARIABLES)
@pytest.mark.parametrize("given", [*itertools.product((False, True), repeat=4)])
def test_the_strongest_origin_wins(key, given, file, monkeypatch):
    flag, variable, named, current = given
    write(file, TWO if current else TWO.replace("current =", "# current ="))
    words = [f"--{key}", VALUES[key][0]] if flag else []
    words += ["--profile", "other"] if named else []
    environment = {VARIABLES[key]: VALUES[key][1]} if variable else {}
    ctx = parsed(words, environment, monkeypatch)
    at = given.index(True) if any(given) else 4
    names = (f"--{key}", VARIABLES[key], "other", "mine", None)
    assert setting(ctx, key) == Setting(VALUES[key][at], ORIGINS[at], names[at])
    found = ctx.params[key]
    assert (None if found is None else str(found)) == VALUES[key][at]


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        (["--profile", "none"], {"GATEWAY_SECURITY_PROTOCOL": "ssl"}, ("SSL", "environment")),
        (["--profile", "other"], {"GATEWAY_SECURITY_PROTOCOL": "ssl"}, ("SSL", "environment")),
        (["--profile", "other"], {}, ("PLAINTEXT", "profile")),
        (["other"], {}, ("PLAINTEXT", "profile")),
        ([], {"GATEWAY_PROFILE": "other"}, ("PLAINTEXT", "profile")),
        (["--profile", "mine"], {"GATEWAY_PROFILE": "other"}, ("PLAINTEXT", "profile")),
        ([], {}, ("PLAINTEXT", "current")),
        (["--profile", "none"], {}, ("PLAINTEXT", "default")),
    ],
)
def test_client_keys_have_the_same_order_of_origins(words, environment, expected, file):
    write(file, TWO)
    found = origins(*words, **environment)
    assert found["security.protocol"][:2] == expected
    assert ("ssl.protocol" in found) == (
        "other" in (*words, *environment.values()) and "mine" not in words
    )


def test_a_profile_gives_the_form_of_the_output_where_a_command_has_it(file):
    @click.command("list", cls=Command)
    @profile_option
    @option("--output", type=Value("format", units.one_of("raw", "json")), default="raw")
    def command(output: str) -> None:
        """Do nothing."""

    def form(profile, **environment):
        write(file, f'current = "mine"\nprofiles.mine.output = "{profile}"\n')
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            return command.make_context("list", []).params["output"]

    assert form("json") == "json"
    assert form("wide") == "raw"
    assert form("wide", GATEWAY_OUTPUT="json") == "json"
    assert form("json", GATEWAY_OUTPUT="csv") == "raw"
    assert origins(GATEWAY_OUTPUT="csv")["output"][:2] == ("json", "flag")


def test_a_variable_with_an_unknown_form_is_wrong_usage(file):
    code, out, errors = gateway("topic", "list", GATEWAY_OUTPUT="xml")
    assert (code, out) == (2, "")
    assert errors.startswith("gateway: variable GATEWAY_OUTPUT is xml: must be table, wide, json, ")


@pytest.mark.parametrize("environment", [{}, {"GATEWAY_BOOTSTRAP": "else:1"}])
def test_other_servers_than_those_of_the_profile_have_metadata_of_their_own(file, environment):
    write(file, TWO)
    words = [] if environment else ["-b", "else:1"]
    assert origins(*words, **environment)["zookeeper"] == (None, "default", None)
    assert origins()["zookeeper"] == ("current:2/chroot", "current", "mine")


def test_a_zookeeper_of_a_profile_does_not_choose_how_group_seek_works(file):
    from gateway.admin.group_cli import group

    write(file, TWO)
    ctx = group.commands["seek"].make_context("seek", ["readers", "--undo"])
    assert ctx.params["zookeeper"] is None
    assert ctx.params["bootstrap"] == "current:1"


# faults of the file

HEAD = "[profiles.a]\n# a comment\n\n"
FAULTS = [
    ("[profiles.a\n", 1, "expected ']' at the end of a table declaration"),
    ("[profiles.a]\nbootstrap = a:1\n", 2, "invalid value"),
    ("[profiles.a]\n\nprotected = true\nprotected = true\n", 4, "cannot overwrite a value"),
    ('[profiles.a]\noutput = "table\n', 2, "illegal character '\\n'"),
    ('[profiles.a]\noutput = """table\n', 2, "unterminated string"),
    ("[profiles.a]\n[profiles.a]\n", 2, "cannot declare ('profiles', 'a') twice"),
    ("x = " + 50_000 * "[" + "\n", None, "tables or arrays are nested too deeply"),
    ("x = " + 5_000 * "9" + "\n", None, "exceeds the limit"),
    (f"{HEAD}bootstap = 'a:1'\n", 4, "unknown key bootstap: did you mean bootstrap?"),
    ("profile.a.output = 'json'\n", 1, "unknown key profile: did you mean profiles?"),
    ("profiles = 3\n", 1, "profiles must be a table"),
    ("[profiles]\na = 3\n", 2, "a must be a table"),
    (f"{HEAD}tls = '/certificates'\n", 4, "tls must be a table"),
    (f"{HEAD}bootstrap = 9092\n", 4, "bootstrap: must be text"),
    (f"{HEAD}bootstrap = 'a:1,b'\n", 4, "bootstrap: 'b' is not host:port"),
    (f"{HEAD}zookeeper = 'a:99999'\n", 4, "zookeeper: must be host:port"),
    (f"{HEAD}output = 'xml'\n", 4, "output xml: must be table, wide, json, jsonl or csv"),
    (f"{HEAD}color = 'red'\n", 4, "color red: must be auto, always or never"),
    (f"{HEAD}protected = 'yes'\n", 4, "protected: must be true or false"),
    (f"{HEAD}schema_registry = 'ftp://a'\n", 4, "schema_registry: must be a URL"),
    (f"{HEAD}tls.bookies = 'certificates'\n", 4, "tls.bookies: must be the absolute path"),
    (f"{HEAD}tls.ssl.truststore.locatoin = 'x'\n", 4, "did you mean ssl.truststore.location?"),
    (f"{HEAD}tls.security.protocol = 'TLS'\n", 4, "security.protocol: must be PLAINTEXT, SSL, "),
    (f"{HEAD}tls.sasl.mechanism = 'PLAIN'\n", 4, "belongs in the table [profiles.a.sasl]"),
    (f"{HEAD}security.protocol = 'SSL'\n", 4, "belongs in the table [profiles.a.tls]"),
    (f"{HEAD}sasl.sasl.mechanism = ['PLAIN']\n", 4, "sasl.mechanism: must be text, a number or"),
    (
        f"{HEAD}sasl.sasl.mechanism = 'PLAIN'\nsasl.'sasl.mechanism' = 'PLAIN'\n",
        5,
        "sasl.mechanism is set twice",
    ),
    (
        f"{HEAD}tls.security.protocol = 'SSL'\n\nsasl.security.protocol = 'SSL'\n",
        6,
        "security.protocol is set twice",
    ),
    (f"{HEAD}output = '''xml\n'''\n\ncolor = 'auto'\n", 4, "output xml"),
    ("current = 'stag'\n[profiles.stage]\n", 1, "current is stag, which is no profile: did you"),
    ("current = 'a'\n", 1, "current is a, which is no profile; use `gateway profile edit`"),
    (f"{HEAD}current = 'a'\n", 4, "current belongs above the first table"),
    ("current = ['a']\n", 1, "current: must be text"),
    (f"{HEAD}{'b' * 9_000} = 1\n", 4, "bbb..."),
    ('[profiles]\n"a/b" = {}\n', 2, "profile 'a/b': must be letters, digits"),
    ("[profiles.none]\n", 1, "none stands for no profile"),
    ("[profiles.a.tls." + ".".join(2_000 * "a") + "]\n", 1, "unknown key a.a.a"),
    ("\n\n\xff", 3, "is not UTF-8"),
    ("#" * (BYTES_MAX + 1), None, "has more than 64KiB"),
]


@pytest.mark.parametrize(("text", "line", "message"), FAULTS, ids=[each[2] for each in FAULTS])
def test_a_fault_is_one_line_with_the_file_and_the_line(text, line, message, file):
    write(file, "")
    file.write_bytes(text.encode("latin-1"))
    code, out, errors = gateway("topic", "list")
    assert (code, out, errors.count("\n")) == (78, "", 1)
    place = f"{file} line {line}: " if line else f"{file}: "
    assert errors.startswith(f"gateway: {place}")
    assert message in errors


def test_a_fault_is_json_when_json_was_asked_for(file):
    write(file, "x = 1\n")
    for words, environment in ((["-o", "json"], {}), ([], {"GATEWAY_OUTPUT": "json"})):
        code, out, errors = gateway("topic", "list", *words, **environment)
        assert (code, out) == (78, "")
        assert errors == (f'{{"error": "{file} line 1: unknown key x", "code": "CONFIGURATION"}}\n')


def test_the_example_of_the_documents_is_valid(file):
    text = (ROOT / "docs" / "profiles.md").read_text()
    write(file, text.partition("```toml\n")[2].partition("```")[0])
    found = origins(GATEWAY_COLOR="auto")
    assert found["tls"] == ("/etc/ledger-gateway/bookie-certificates", "current", "prod")
    assert found["color"] == ("auto", "environment", "GATEWAY_COLOR")
    assert {key for key, (_, origin, _) in found.items() if origin == "default"} == set()


def test_none_is_no_profile_and_reads_no_file(file):
    write(file, "x = \n")
    code, _, errors = gateway("topic", "list", "--profile", "none", "-b", "127.0.0.1:1")
    assert (code, "no server at 127.0.0.1:1" in errors) == (69, True)


@pytest.mark.parametrize("words", [["--profile", "othr"], []])
def test_an_unknown_profile_is_wrong_usage_and_the_nearest_is_named(words, file):
    write(file, TWO)
    environment = {} if words else {"GATEWAY_PROFILE": "othr"}
    code, out, errors = gateway("topic", "list", *words, **environment)
    assert (code, out) == (2, "")
    name = "--profile" if words else "GATEWAY_PROFILE"
    assert f"{name} othr: there is no such profile: did you mean other?" in errors


def test_a_directory_in_place_of_the_file_is_a_fault(file):
    file.mkdir(parents=True)
    code, _, errors = gateway("topic", "list")
    assert (code, errors) == (78, f"gateway: {file}: Is a directory\n")


# secrets


@pytest.mark.parametrize(
    "secret",
    [
        *(
            f"{key[: key.index('.')].replace('ssl', 'tls')}.'{key}' = '{SECRET}'"
            for key in sorted(SECRET_KEYS)
        ),
        f"schema_registry = 'https://ann:{SECRET}@registry:8081/sub'",
    ],
)
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o602])
def test_a_secret_that_others_may_read_is_refused(secret, mode, file):
    write(file, f"[profiles.a]\n{secret}\n", mode)
    code, out, errors = gateway("topic", "list", "--profile", "a")
    assert (code, out) == (78, "")
    assert errors.endswith(f"that others may read; run chmod 600 {file}\n")
    assert SECRET not in errors
    file.chmod(0o600)
    code, out, errors = gateway("profile", "show", "a")
    assert (code, SECRET in out + errors, "[hidden]" in out) == (0, False, True)


def test_a_file_without_secrets_may_be_read_by_others(file):
    write(file, TWO, 0o644)
    assert gateway("profile", "list")[0] == 0


ALL = "".join(f"'{key}' = '{SECRET}'\n" for key in sorted(SECRET_KEYS) if key.startswith("sasl"))
SASL = f"current = 'a'\n[profiles.a]\nschema_registry = 'http://u:{SECRET}@r:1'\n[profiles.a.sasl]\n{ALL}"


@pytest.mark.parametrize(
    "added",
    [
        "",
        f"sasl.password = '{SECRET}'\n",
        f"'sasl.passwrd' = '{SECRET}'\n",
        f"'sasl.mechanism' = ['{SECRET}']\n",
        f"'ssl.key.password' = '{SECRET}'\n",
        f"'security.protocol' = '{SECRET}'\n",
        f"'sasl.username' = {SECRET}\n",
        f"'sasl.username' = '{SECRET}\n",
        f"'sasl.username' = '{SECRET}' x\n",
        f"[profiles.b]\nschema_registry = 'https:/u:{SECRET}@r'\n",
        f"[profiles.b]\nzookeeper = '{SECRET}@'\n",
    ],
)
def test_no_command_prints_a_secret(added, file):
    write(file, SASL + added)
    for words in (
        ["topic", "list"],
        ["profile", "show"],
        ["profile", "show", "--origin"],
        ["profile", "list"],
    ):
        for form in ("table", "json"):
            _, out, errors = gateway(*words, "-o", form, GATEWAY_SSL_KEY_PASSWORD=SECRET)
            assert out or errors
            assert SECRET not in out + errors


# what is not supported yet

CONNECTING = [
    ["topic", "list"],
    ["topic", "produce", "orders"],
    ["topic", "consume", "orders"],
    ["topic", "consume", "orders", "-g", "readers"],
    ["group", "list"],
    ["transaction", "list"],
    ["feature", "describe"],
    ["bookie", "status"],
    ["ledger", "list"],
    ["job", "archive", "orders", "--to", "/nowhere"],
]
SECURITY = [
    "tls.security.protocol = 'SSL'\ntls.ssl.truststore.location = '/no/such.pem'",
    "tls.security.protocol = 'SSL'\ntls.ssl.keystore.type = 'JKS'",
    "sasl.security.protocol = 'SASL_PLAINTEXT'",
    "sasl.security.protocol = 'sasl_ssl'\nsasl.sasl.mechanism = 'GSSAPI'",
    f"sasl.security.protocol = 'SASL_PLAINTEXT'\nsasl.sasl.mechanism = 'PLAIN'\n"
    f"sasl.sasl.username = 'a'\nsasl.sasl.password = '{SECRET}'",
    "tls.ssl.truststore.location = '/ca.pem'",
    f"sasl.sasl.password = '{SECRET}'",
]


@pytest.mark.parametrize("words", CONNECTING, ids=" ".join)
def test_what_is_not_supported_is_refused_before_any_connection(words, file):
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.setblocking(False)
        server = f"127.0.0.1:{listener.getsockname()[1]}"
        for line in SECURITY:
            write(file, f"current = 'a'\n[profiles.a]\nbootstrap = '{server}'\n{line}\n")
            for more in ([], ["-b", server], ["-o", "json"]):
                code, out, errors = gateway(*words, *more)
                assert (code, out, errors.count("\n")) == (78, "", 1), errors
                assert "nothing was sent" in errors
                assert SECRET not in errors
        write(file, "")
        assert gateway(*words, "-b", server, GATEWAY_SECURITY_PROTOCOL="SASL_SSL")[0] == 78
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_a_client_refuses_what_is_not_supported_whoever_makes_it():
    settings = ClientSettings("127.0.0.1:1", {"ssl.keystore.location": "/key.pem"})
    with pytest.raises(UnsupportedSecurity):
        AdminClient(settings)
    with pytest.raises(UnsupportedSecurity):
        settings.for_aiokafka()


def test_plain_text_that_was_asked_for_connects(file):
    write(file, "[profiles.a]\nbootstrap = '127.0.0.1:1'\ntls.security.protocol = 'PLAINTEXT'\n")
    code, _, errors = gateway("topic", "list", "--profile", "a")
    assert (code, "no server at 127.0.0.1:1" in errors) == (69, True)
    assert ClientSettings("[::1]:1,b:2").for_aiokafka() == {
        "bootstrap_servers": "[::1]:1,b:2",
        "security_protocol": "PLAINTEXT",
    }


def test_a_client_of_aiokafka_connects_as_the_page_of_its_gateway_does():
    login = Login("SCRAM-SHA-512", "gateway", "secret")
    own = LinkSecurity(None, login)
    assert ClientSettings("a:1", {PROTOCOL: "PLAINTEXT"}, own=own).for_aiokafka() == {
        "bootstrap_servers": "a:1",
        "security_protocol": "SASL_PLAINTEXT",
        "ssl_context": None,
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "gateway",
        "sasl_plain_password": "secret",
    }


# every command


def commands(group, path=()):
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        below = group.get_command(ctx, name)
        if isinstance(below, click.Group):
            yield from commands(below, (*path, name))
        else:
            yield (*path, name), {each.name: each for each in below.params}


def test_every_command_that_connects_takes_a_profile_and_every_question_its_name():
    connecting, asking = 0, 0
    for path, options in commands(program):
        if path[0] == "profile" and path[1] != "show":
            continue
        bootstrap = options.get("bootstrap")
        if bootstrap is not None:
            connecting += 1
            assert "profile" in options, path
        if "yes" in options:
            asking += 1
            assert "yes_on" in options and "profile" in options, path
    assert (connecting > 35, asking > 5) == (True, True)


def test_without_a_file_no_command_loads_a_parser_of_toml(file):
    code = (
        "import sys, os; from gateway.process.cli import program\n"
        "try: program(['topic', 'list', '-b', '127.0.0.1:1'], prog_name='gateway')\n"
        "except SystemExit: pass\n"
        "print(sorted({'tomllib', 'gateway.admin.profiles'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"
    assert "no server at" in done.stderr
