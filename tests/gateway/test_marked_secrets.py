"""Goal: no password, key or proof is in a log, a metric, a config, a traceback, the page or what an
object prints of itself.

Method: a gateway with the files of `gateway dev --secure`. Its secrets are the marks: passwords of
right and wrong logins, private keys, salts and derived keys. All that it shows is searched.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import sqlite3
import subprocess
import sys
import traceback
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from gateway.admin.client_settings import ClientSettings
from gateway.core.scram_credentials import Credential, Mechanism, Upsertion
from gateway.core.scram_exchange import MECHANISMS, ScramClient, ScramServer
from gateway.http.rows import PAGES
from gateway.security.client_keys import link_security
from gateway.security.link_security import LinkSecurity, Login
from ledger.command_line.secret_values import parse_reference, resolve, resolve_line
from tests.peers import install
from tests.peers.processes import Process

MARK = "marked-secret-7Qz"
WRONG = "marked-wrong-9Xk"
WAIT_S = 60.0


def gateway(*words, **variables):
    return subprocess.run(
        [sys.executable, "-m", "gateway", *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


def found_in(text, marks):
    return [mark for mark in marks if mark in text]


def of_keys(place):
    """Return the password and the lines of the private keys."""
    marks = [(place / "admin.password").read_text().strip()]
    for name in ("ca.key", "server.pem"):
        key = re.search(r"PRIVATE KEY-----\n(.*?)\n-----END", (place / name).read_text(), re.S)
        marks += key[1].splitlines()
    return marks


def of_store(data):
    """Return the salts and keys of the users, as the metadata keeps them."""
    with sqlite3.connect(f"file:{data / 'metadata.sqlite'}?mode=ro", uri=True) as store:
        text = "".join(store.iterdump())
    blobs = "".join(
        bytes.fromhex(each).decode(errors="replace") for each in re.findall(r"X'([0-9A-F]+)'", text)
    )
    found = re.findall(r'"(?:salt|stored_key|server_key)": ?"([^"]+)"', blobs + text)
    assert len(found) >= 12  # two users with two mechanisms
    return found


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    data = tmp_path_factory.mktemp("marks") / "data"
    words = ["dev", "--secure", "--port", "0", "--http-port", "0", "--data", str(data)]
    argv = [install.gateway_python(), "-m", "gateway", *words]
    process = Process(argv, data.with_name("log"))
    try:
        process.wait_for(lambda: "\ngateway: " in process.output(), "its lines", WAIT_S)
        server = re.search(r"bootstrap\.servers=(\S+)", process.output())[1]
        page = re.search(r"^page: (\S+)/$", process.output(), re.M)[1]
        place = data / "secure"
        ours = ("-b", server, "--command-config", str(place / "client.properties"))
        made = SimpleNamespace(
            process=process, server=server, page=page, place=place, ours=ours, said=[]
        )
        use(made)
        made.marks = [MARK, WRONG, *of_keys(place), *of_store(data)]
        made.marks.append(base64.b64encode(f"\0admin\0{WRONG}".encode()).decode())
        yield made
    finally:
        process.stop(WAIT_S)


def settings_of(started, mechanism, password, user="admin"):
    return {
        "bootstrap.servers": started.server,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(started.place / "ca.pem"),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def use(started):
    """Log in rightly and wrongly, change a user and a topic, and reload."""
    done = gateway("user", "add", "ann", "--password", "env:MARKED", *started.ours, MARKED=MARK)
    assert done.returncode == 0, done.stderr
    started.said.append(done.stdout + done.stderr)
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        good = AdminClient(settings_of(started, mechanism, MARK, "ann"))
        assert good.list_topics(timeout=WAIT_S).brokers
        with pytest.raises(KafkaException):
            AdminClient(settings_of(started, mechanism, WRONG)).list_topics(timeout=2.0)
    for words in (("topic", "create", "t"), ("user", "list"), ("acl", "list")):
        done = gateway(*words, *started.ours)
        started.said.append(done.stdout + done.stderr)
    started.process.send_signal(signal.SIGHUP)
    started.process.wait_output("settings were reloaded", WAIT_S)


@pytest.mark.process
def test_the_log_and_the_commands_show_no_mark(started):
    log = started.process.output()
    assert "authentication failed" in log  # the wrong logins are there
    assert found_in(log, started.marks) == []
    assert found_in("".join(started.said), started.marks) == []
    assert "Traceback" not in log


@pytest.mark.process
def test_the_configs_of_a_broker_show_no_mark(started):
    password = (started.place / "admin.password").read_text().strip()
    admin = AdminClient(settings_of(started, "SCRAM-SHA-512", password))
    kinds = (ConfigResource(ResourceType.BROKER, "0"), ConfigResource(ResourceType.TOPIC, "t"))
    shown = ""
    for each in kinds:
        (found,) = admin.describe_configs([each]).values()
        shown += str([(name, entry.value) for name, entry in found.result(WAIT_S).items()])
    assert "node.id" in shown
    assert found_in(shown, started.marks) == []


def paths():
    """Return every page and its JSON; a name in a path is filled in."""
    for page in PAGES:
        path = re.sub(r"\{(\w+)\}", lambda part: {"topic": "t"}.get(part[1], "0"), page.path)
        yield path
        yield f"/api/v1{path}"


@pytest.mark.process
def test_the_page_and_the_metrics_show_no_mark(started):
    password = (started.place / "admin.password").read_text().strip()
    written = base64.b64encode(f"admin:{password}".encode()).decode()
    count = 0
    for path in (*paths(), "/metrics", "/health"):
        asked = urllib.request.Request(
            started.page + path, headers={"Authorization": f"Basic {written}"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
                text, count = answer.read().decode(), count + 1
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            error.close()
        assert found_in(text, started.marks) == [], path
    assert count > 10


@pytest.mark.process
def test_printed_settings_and_a_report_of_the_doctor_show_no_mark(started, tmp_path):
    words = ("--ssl-key-password", "env:MARKED", "--inter-broker-password", "env:MARKED")
    shown = gateway("dev", "--print-config", *words, MARKED=MARK)
    assert (shown.returncode, MARK in shown.stdout + shown.stderr) == (0, False)
    shown = gateway("dev", "--print-config", "--ssl-key-password", MARK)
    assert (shown.returncode, MARK in shown.stdout + shown.stderr) == (78, False)
    shown = gateway("config", "show", GATEWAY_SSL_KEYSTORE_KEY=MARK)
    assert (shown.returncode, MARK in shown.stdout + shown.stderr) == (78, False)
    bundle = tmp_path / "bundle.tar.gz"
    done = gateway("doctor", "--bundle", str(bundle), *started.ours)
    assert found_in(done.stdout + done.stderr, started.marks) == []
    assert bundle.exists(), done.stderr
    shown = subprocess.run(["tar", "-xzOf", bundle], capture_output=True, check=True).stdout
    assert found_in(shown.decode(errors="replace"), started.marks) == []


def objects():
    """Make one of each object that has a secret while it lives."""
    salted = MARK.encode()
    keys = {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": MARK}
    login = Login("SCRAM-SHA-512", "ann", MARK)
    credential = Credential(4096, b"salt", salted, salted)
    return (
        login,
        LinkSecurity(None, login),
        link_security("SASL_SSL", keys),
        ClientSettings("a:1", keys),
        ClientSettings("a:1", own=LinkSecurity(None, login)),
        ScramClient(MECHANISMS["SCRAM-SHA-512"], "ann", MARK, "nonce"),
        ScramServer(Mechanism.SHA_512, lambda _: (credential, True), "nonce"),
        credential,
        Upsertion("ann", Mechanism.SHA_512, 4096, b"salt", salted),
    )


@pytest.mark.parametrize("at", range(len(objects())))
def test_an_object_with_a_secret_prints_none(at):
    made = objects()[at]
    assert MARK not in f"{made!r} {made!s} {[made]!r}"


def calls(place):
    """Yield what fails because of a secret."""
    (place / "open").write_text(MARK)
    (place / "open").chmod(0o644)
    (place / "bytes").write_bytes(MARK.encode() + b"\xff")
    (place / "bytes").chmod(0o600)
    keys = {"sasl.mechanism": "PLAIN", "sasl.password": MARK, "ssl.keystore.key": MARK}
    yield lambda: resolve_line("env:MARKED")
    yield lambda: resolve(f"file:{place / 'open'}")
    yield lambda: resolve_line(f"file:{place / 'bytes'}")
    yield lambda: parse_reference(MARK)
    yield lambda: link_security("SASL_SSL", keys)
    yield lambda: link_security("SSL", {"ssl.keystore.key": MARK, "ssl.key.password": MARK})


def test_an_error_about_a_secret_does_not_have_it(tmp_path, monkeypatch):
    """In its text, and in the text of everything that it was raised from."""
    monkeypatch.setenv("MARKED", f"{MARK}\n{MARK}")
    for call in calls(tmp_path):
        with pytest.raises(Exception) as raised:
            call()
        shown = "".join(traceback.format_exception(raised.value))
        assert MARK not in shown
