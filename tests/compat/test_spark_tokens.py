"""Goal: jobs on Spark log in by OAUTHBEARER, with a token of a file and one that a server grants.

Method: one gateway that takes tokens of an issuer, an https server of this process that grants
them, and the commands as processes of their own, each with a new Spark that writes event files.
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from tests.compat.test_secure_matrix import MatrixGateway, certified
from tests.peers.spark_jobs import JobSite

pytestmark = [
    pytest.mark.compat,
    pytest.mark.process,
    pytest.mark.proof,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
]
ROWS = 100
TOPIC = "orders"
SECRET = "marked-secret-7Qz"
PASSWORD = "changeit"
PREFIX = "sasl.oauthbearer"


class _Granting(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.asked.append(self.headers["User-Agent"])
        self.rfile.read(int(self.headers["Content-Length"]))
        granted = {"access_token": self.server.token, "expires_in": 600}
        refused = {"error": "invalid_client"}
        answer = json.dumps(granted if self.server.status == 200 else refused).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Site(JobSite):
    """A gateway that takes tokens, a server that grants them, and a topic with records."""

    def __init__(self, directory, authority, gateway):
        self.authority, self.gateway = authority, gateway
        self.token = (authority.path / "token").read_text()
        self.server = HTTPServer(("127.0.0.1", 0), _Granting)
        self.server.asked, self.server.token, self.server.status = [], self.token, 200
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.path / "server.pem")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        store = directory / "trusted.p12"
        trusted = x509.load_pem_x509_certificate(authority.trusted.read_bytes())
        entries = [pkcs12.PKCS12Certificate(trusted, b"ca")]
        hidden = BestAvailableEncryption(PASSWORD.encode())
        store.write_bytes(pkcs12.serialize_java_truststore(entries, hidden))
        super().__init__(
            directory,
            [SECRET, self.token],
            {"CLIENT_SECRET": SECRET, "SSL_CERT_FILE": str(authority.trusted)},
            f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword={PASSWORD}",
        )

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def keys(self, kind):
        """Return the options by which a job logs in with a token of this kind."""
        found = {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.trusted,
            "sasl.mechanism": "OAUTHBEARER",
        }
        if kind != "server":
            return found | {f"{PREFIX}.token.endpoint.url": f"file:{self.authority.path / kind}"}
        return found | {
            f"{PREFIX}.token.endpoint.url": f"https://localhost:{self.server.server_port}/token",
            f"{PREFIX}.client.credentials.client.id": "spark",
            f"{PREFIX}.client.credentials.client.secret": "env:CLIENT_SECRET",
            f"{PREFIX}.scope": "kafka",
        }

    def by(self, kind):
        """Return the words by which a job reaches the gateway with a token of this kind."""
        options = [f"--option=kafka.{key}={value}" for key, value in self.keys(kind).items()]
        return ("-b", self.gateway.at("LOGIN"), *options)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    authority = certified(tmp_path_factory.mktemp("pki") / "ca")
    directory = tmp_path_factory.mktemp("jobs")
    with MatrixGateway(directory, authority) as gateway:
        made = Site(directory, authority, gateway)
        lines = "".join(f"record {number}\n" for number in range(ROWS))
        made.run("topic", "create", TOPIC, "-p", "2", "-b", gateway.bootstrap)
        made.run("topic", "produce", TOPIC, "-b", gateway.bootstrap, stdin=lines)
        yield made
        made.close()
        assert "Traceback" not in gateway.output()


@pytest.mark.parametrize("kind", ["token", "server"])
def test_a_topic_is_archived_replayed_and_audited_with_a_token(site, kind):
    archive = site.directory / f"archive-{kind}"
    done = site.job("archive", TOPIC, "--to", str(archive), *site.by(kind))
    assert (done["offsets"], done["set_aside"]) == (ROWS, [])
    place = ("--from", str(archive), "--topic", TOPIC, "--to-topic", f"again-{kind}", "--create")
    done = site.job("replay", *place, *site.by(kind))
    assert done["records"] == done["written"] == ROWS
    sides = (f"topic:{TOPIC}", f"topic:again-{kind}", "--align", "rank", "--allow-gaps")
    done = site.job("audit", *sides, *site.by(kind))
    assert (done["verdict"], done["records"]) == ("equal", {"left": ROWS, "right": ROWS})
    shown = site.shown()
    assert not [each for each in site.secrets if each in shown]
    if kind == "server":  # the commands and Kafka's client in the JVM have asked it
        agents = {each.partition("/")[0] for each in site.server.asked}
        assert {"Python-urllib", "Java"} <= agents


def refused(site, job, kind):
    """Return the error of a job that gets no further than its login."""
    words = {
        "archive": (TOPIC, "--to", str(site.directory / "x")),
        "audit": (f"topic:{TOPIC}", f"topic:{TOPIC}"),
    }
    return site.job(job, *words[job], *site.by(kind), code=77)


@pytest.mark.parametrize("job", ["archive", "audit"])
def test_a_token_that_has_ended_is_one_line(site, job):
    assert refused(site, job, "expired")["code"] == "SASL_AUTHENTICATION_FAILED"


@pytest.mark.parametrize("job", ["archive", "audit"])
def test_a_server_that_grants_no_token_is_one_line(site, job, monkeypatch):
    monkeypatch.setattr(site.server, "status", 401)
    assert refused(site, job, "server")["code"] == "SASL_AUTHENTICATION_FAILED"
