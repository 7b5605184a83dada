"""Goal: beyond loopback the page needs TLS and passwords, and checking these harms nothing else.

Method: the file of passwords and the settings in this process; an embedded gateway in a thread,
with ports that need a password or TLS.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
import threading
import time

import pytest
from click.testing import CliRunner

from gateway.http.password_file import (
    FILE_BYTES_MAX,
    PASSWORD_BYTES_MAX,
    PasswordFault,
    line_of,
    read_passwords,
)
from gateway.http.passwords import CHECKS_MAX, Passwords
from gateway.process import dev, serve
from gateway.process.cli import program
from ledger.command_line.program import flags_of
from tests.gateway.authorizers import Deciding
from tests.gateway.page_rig import PageRig, ask, opened, rest
from tests.gateway.page_rows import Seen, rows
from tests.ledger.authority import Authority
from tests.peers.stalls import Stalls

SECRET = "correct horse: battery"


@pytest.fixture(scope="module")
def passwords(tmp_path_factory):
    """A file with the passwords of alice and bob."""
    file = tmp_path_factory.mktemp("passwords") / "passwords"
    file.write_text(f"# people\n\n{line_of('alice', SECRET)}\n{line_of('böb', 'ü')}\n")
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    with PageRig(tmp_path_factory.mktemp("page") / "data") as rig:
        yield rig


@pytest.fixture(scope="module")
def port(rig, passwords):
    return rig.serve(rows(Seen()), passwords=read_passwords(passwords))


def basic(name, password):
    written = base64.b64encode(f"{name}:{password}".encode()).decode()
    return {"Authorization": f"Basic {written}"}


# -- the file --------------------------------------------------------------------------------------


def test_a_line_holds_the_password_as_a_hash(passwords):
    found = read_passwords(passwords)
    assert found.keys() == {"alice", "böb"}
    assert found["alice"].matches(SECRET.encode())
    assert not found["alice"].matches(b"correct horse")
    assert SECRET not in passwords.read_text()
    assert line_of("a", "b") != line_of("a", "b")  # salted


# What `line_of("a", "b")` returned once: names of tests must be the same in each worker of xdist.
GOOD = "a:scrypt$16384$8$1$j2rYHOJ12ywRg1LF8AwxFA==$g/MOyfJU/zsQeCbGPju0VpzVGiNORCu+u3iT3U4kxcQ="


@pytest.mark.parametrize(
    ("content", "mode", "fault"),
    [
        (GOOD, 0o640, "other users can read it; run chmod 600"),
        (GOOD, 0o604, "other users can read it; run chmod 600"),
        ("", 0o600, "has no line; make one with `gateway http-password NAME`"),
        ("a", 0o600, "line 1: no scrypt hash follows the name"),
        ("a:b", 0o600, "line 1: no scrypt hash follows the name"),
        ("\n:" + GOOD, 0o600, "line 2: must begin with a name that no other line has"),
        (f"{GOOD}\n{GOOD}", 0o600, "line 2: must begin with a name that no other line has"),
        (GOOD.replace("16384", "16383"), 0o600, "line 1: no scrypt hash"),
        (GOOD.replace("$16384$8$", "$1073741824$8$"), 0o600, "line 1: no scrypt hash"),
        (GOOD.replace("$8$1$", "$8$0$"), 0o600, "line 1: no scrypt hash"),
        (GOOD[:-8], 0o600, "line 1: no scrypt hash"),
        ("\udcff", 0o600, "is not valid UTF-8"),
        ("#" * (FILE_BYTES_MAX + 1), 0o600, "has more than 1,048,576 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(tmp_path, content, mode, fault):
    file = tmp_path / "passwords"
    file.write_text(content, errors="surrogateescape")
    file.chmod(mode)
    with pytest.raises(PasswordFault) as raised:
        read_passwords(file)
    assert str(raised.value).startswith(fault)


def test_a_file_that_is_missing_or_none_is_refused(tmp_path):
    with pytest.raises(PasswordFault, match="no such file"):
        read_passwords(tmp_path / "nowhere")
    with pytest.raises(PasswordFault, match="is a directory"):
        read_passwords(tmp_path)


def made(name, given):
    done = CliRunner().invoke(program, ["http-password", name], input=given, prog_name="gateway")
    return done.exit_code, done.stdout, done.stderr


def test_the_command_prints_a_line_that_the_file_takes(tmp_path):
    code, out, errors = made("alice", SECRET + "\n")
    assert (code, errors) == (0, "")
    file = tmp_path / "passwords"
    file.write_text(out)
    file.chmod(0o600)
    assert read_passwords(file)["alice"].matches(SECRET.encode())


@pytest.mark.parametrize(
    ("name", "given", "fault"),
    [
        ("a:b", "x\n", "'a:b' is no name: 1 to 100 characters without spaces and colons"),
        ("a b", "x\n", "'a b' is no name: 1 to 100 characters without spaces and colons"),
        ("alice", "\n", "a password has 1 to 1024 bytes"),
        ("alice", "", "a password has 1 to 1024 bytes"),
        ("alice", "x" * (PASSWORD_BYTES_MAX + 1), "a password has 1 to 1024 bytes"),
    ],
)
def test_a_name_or_password_that_cannot_be_one_is_one_line(name, given, fault):
    assert made(name, given) == (65, "", f"gateway: http-password: {fault}\n")


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("alice", "wrong"),
        basic("nobody", SECRET),
        basic("alice", ""),
        {"Authorization": "Basic"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic " + base64.b64encode(b"\xff:x").decode()},
        {"Authorization": "Basic " + base64.b64encode(b"alice").decode()},
        {"Authorization": "Bearer x"},
        {"Authorization": "Basic " + "A" * 6_000},
    ],
)
def test_without_the_right_password_there_is_nothing(port, headers):
    for path in ("/plain", "/api/v1/plain", "/static/site.css", "/metrics", "/nowhere"):
        answer = ask(port, path, headers=headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
        assert "User:" not in answer.text
        if headers:
            break  # a wrong password takes a while


@pytest.mark.parametrize(("name", "password"), [("alice", SECRET), ("böb", "ü")])
def test_a_name_with_its_password_is_a_principal(port, name, password):
    answer = ask(port, "/api/v1/plain", headers=basic(name, password))
    assert json.loads(answer.body)["principal"] == f"User:{name}"


def test_rights_are_asked_for_the_principal(rig, port):
    asked = []

    def allow_bob(principal, operation, resource):
        asked.append(principal)
        return principal == "User:böb"

    rig.running.ctx.authorizer = Deciding(allow_bob)
    try:
        assert ask(port, "/api/v1/plain", headers=basic("alice", SECRET)).status == 403
        assert ask(port, "/api/v1/plain", headers=basic("böb", "ü")).status == 200
    finally:
        rig.running.ctx.authorizer = None
    assert asked == ["User:alice", "User:böb"]


def test_health_is_open_and_metrics_where_it_is_said(rig, port, passwords):
    for path in ("/health", "/health/live", "/health/ready"):
        assert ask(port, path).status == 200
    assert ask(port, "/metrics", headers=basic("alice", SECRET)).status == 200
    opened_port = rig.serve(passwords=read_passwords(passwords), open_metrics=True)
    assert ask(opened_port, "/metrics").status == 200
    assert ask(opened_port, "/").status == 401
    scraped = rig.serve(passwords=read_passwords(passwords), metrics_only=True)
    assert ask(scraped, "/metrics").status == 401
    assert ask(scraped, "/health").status == 200


@pytest.mark.real_loop
async def test_few_passwords_are_checked_at_a_time_and_a_known_one_costs_nothing():
    under_way = most = 0
    together = threading.Barrier(CHECKS_MAX, timeout=60)  # a busy machine begins them one by one

    class Slow:
        def matches(self, password):
            nonlocal under_way, most
            under_way += 1
            together.wait()
            most = max(most, under_way)
            threading.Event().wait(0.05)
            under_way -= 1
            return password == b"right"

    checker = Passwords({f"n{number}": Slow() for number in range(6)})
    headers = [basic(f"n{number}", "right")["Authorization"] for number in range(6)]
    found = await asyncio.gather(*map(checker.check, headers))
    assert found == [f"n{number}" for number in range(6)]
    assert most == CHECKS_MAX
    most = 0
    assert await asyncio.gather(*map(checker.check, headers)) == found
    assert most == 0
    began_s = time.monotonic()
    wrong = basic("n1", "wrong")["Authorization"]
    assert await asyncio.gather(checker.check(wrong), checker.check(wrong)) == [None, None]
    assert most == CHECKS_MAX
    assert time.monotonic() - began_s > 0.2


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ca", "an authority")


@pytest.fixture(scope="module")
def secured(rig, authority):
    files = authority.files("page")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert, files.key)
    return rig.serve(rows(Seen()), tls=context, connections_max=4, head_s_max=2.0)


def asked_securely(authority, port, path):
    context = ssl.create_default_context(cafile=str(authority.path / "ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_page_is_served_by_tls(authority, secured):
    assert asked_securely(authority, secured, "/api/v1/plain")[0] == 200
    status, body = asked_securely(authority, secured, "/api/v1/large")
    assert (status, len(body) > 1_000_000) == (200, True)


def test_a_handshake_that_never_comes_takes_a_place_only_for_a_while(authority, secured):
    waiting = [opened(secured) for _ in range(4)]
    began_s = time.monotonic()
    with Stalls() as stalls:
        assert asked_securely(authority, secured, "/api/v1/plain")[0] == 503
        for connection in waiting:
            assert rest(connection) == b""
            connection.close()
        took_s = time.monotonic() - began_s
    assert took_s - stalls.longest_s < 10.0
    assert asked_securely(authority, secured, "/api/v1/plain")[0] == 200


def test_plain_http_gets_nothing_at_a_port_with_tls(secured):
    with opened(secured) as connection:
        connection.sendall(b"GET /plain HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in rest(connection)


# -- the settings ----------------------------------------------------------------------------------


def faults(command, *words):
    tool, module = (dev.dev, dev) if command == "dev" else (serve.serve, serve)
    more = [] if command == "dev" else ["--zookeeper", "z:1"]
    settings = module.settings_of(flags_of(tool, [*more, *words]))
    return module.faults_of(settings)


BEYOND = "other machines can reach it, so"
READABLE = "other users can read it; run chmod 600"
MISSING = "no such file or directory"


@pytest.mark.parametrize("command", ["dev", "serve"])
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--http-port 1", ""),
        ("--http-port 1 --http-host localhost", ""),
        ("--http-port 1 --http-host ::1 --http-write", ""),
        ("--http-port 1 --http-host 127.8.8.8", ""),
        (
            "--http-port 1 --http-host 0.0.0.0",
            "--http-host 0.0.0.0: other machines can reach it, so pass --http-cert and --http-key "
            "and --http-password-file, or --allow-insecure",
        ),
        (
            "--http-port 1 --http-host gateway.example --http-cert C --http-key K",
            f"--http-host gateway.example: {BEYOND} pass --http-password-file, or --allow-insecure",
        ),
        ("--http-port 1 --http-host :: --http-cert C --http-key K --http-password-file P", ""),
        ("--http-port 1 --http-host :: --allow-insecure", ""),
        (
            "--http-port 1 --http-host :: --allow-insecure --http-write",
            f"--http-host ::: {BEYOND} --http-write needs --http-password-file as well",
        ),
        (
            "--http-port 1 --http-host :: --allow-insecure --http-write --http-password-file P",
            "",
        ),
        ("--no-http-port --http-host ::", ""),
        ("--http-port 1 --http-cert C", "--http-cert C: pass its private key too, by --http-key"),
        ("--http-port 1 --http-key K", "--http-key K: pass its certificate too, by --http-cert"),
        ("--http-port 1 --http-cert C --http-key W", f"--http-key W: {READABLE}"),
        ("--http-port 1 --http-cert N --http-key K", "--http-cert N: no such file"),
        ("--http-port 1 --http-cert C --http-key N", "--http-key N: no such file"),
        ("--http-port 1 --http-password-file W", f"--http-password-file W: {READABLE}"),
        ("--http-port 1 --http-password-file N", f"--http-password-file N: {MISSING}"),
        ("--metrics-port 1 --http-password-file N", f"--http-password-file N: {MISSING}"),
        (
            "--http-port 1 --http-name a:80",
            "--http-name a:80: must be host names without ports; IPv6 addresses have brackets",
        ),
        ("--http-port 1 --http-name [::2]", ""),
        ("--http-port 1 --http-name a,b/c", "--http-name a,b/c: must be a host name or an address"),
    ],
)
def test_what_other_machines_reach_needs_tls_and_passwords(tmp_path, command, words, fault):
    names = {name: tmp_path / name for name in "CKPWN"}
    for name, mode in (("C", 0o644), ("K", 0o600), ("P", 0o600), ("W", 0o644)):
        names[name].write_text(GOOD)
        names[name].chmod(mode)
    given = [str(names.get(word, word)) for word in words.split()]
    for name, path in names.items():
        fault = fault.replace(f" {name}:", f" {path}:")
    place = ["--data", str(tmp_path / "data")] if command == "dev" else []
    assert faults(command, *given, *place) == ([fault] if fault else [])


def test_the_port_of_a_page_is_9080_for_dev_and_none_for_serve():
    assert dev.http_config(dev.settings_of(flags_of(dev.dev, []))).port == 9080
    settings = serve.settings_of(flags_of(serve.serve, []))
    assert serve.config_of(settings).http.port is None
    found = dev.http_config(dev.settings_of(flags_of(dev.dev, ["--http-name", "A.b,c"])))
    assert (found.names, found.may_be_taken, found.host) == (("a.b", "c"), True, "127.0.0.1")
