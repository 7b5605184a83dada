"""Goal: jobs on Spark send a secret where it belongs, and read it once.

Method: the accesses of an audit of two clusters, and the keys that executors get.
"""

import re
import socket

import click
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.admin.client_settings import ClientSettings
from gateway.pipelines.audit_command import accesses_of
from gateway.pipelines.audits.sources import SourceAccess
from gateway.pipelines.job import fail_job
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_admin import _code_of
from gateway.pipelines.shared.kafka_servers import (
    _pkcs8,
    expect_token,
    job_servers,
    link_security,
)
from gateway.pipelines.shared.session import REDACTED
from gateway.pipelines.shared.token_options import (
    quoted,
    token_urls,
    token_urls_allowed,
    with_token_urls,
)
from gateway.security.token_keys import HANDLER, HANDLERS, MODULE, URL
from gateway.wire.client_link import Unreachable
from ledger.command_line.output import Format

KEYS = {"security.protocol": "SASL_SSL", "sasl.password": "of-here"}
HERE = SourceAccess("here:9093")
BOTH = {"kafka.ssl.truststore.location": "/ca.pem"}


def test_an_audit_sends_the_keys_of_one_cluster_to_no_other():
    left, right = accesses_of(
        HERE.with_options(BOTH), KEYS, "there:9093", {"kafka.sasl.password": "of-there"}
    )
    assert left.client == {**KEYS, "ssl.truststore.location": "/ca.pem"}
    assert right.bootstrap == "there:9093"
    assert right.client == {"ssl.truststore.location": "/ca.pem", "sasl.password": "of-there"}


def test_an_audit_of_one_cluster_logs_in_at_both_sides():
    left, right = accesses_of(HERE.with_options({"kafka.sasl.password": "new"}), KEYS, "", {})
    assert left == right
    assert left.client["sasl.password"] == "new"


@pytest.mark.parametrize("password", ["env:HOME-secret", "file:/etc/shadow"])
def test_a_password_that_looks_like_a_reference_is_read_no_second_time(password, tmp_path):
    file = tmp_path / "password"
    file.write_text(password)
    file.chmod(0o600)
    keys = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ann",
        "sasl.password": f"file:{file}",
    }
    with pytest.raises(JobError, match="begins with file: or env:") as refused:
        job_servers(ClientSettings("h:1", keys), {})
    assert "secret" not in str(refused.value) and "shadow" not in str(refused.value)


@pytest.mark.parametrize("passphrase", [b"", b"of the key"])
@pytest.mark.parametrize("form", ["TraditionalOpenSSL", "PKCS8"])
def test_kafkas_client_gets_every_private_key_in_the_form_that_it_reads(form, passphrase, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    hidden = serialization.BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    written = key.private_bytes(Encoding.PEM, getattr(PrivateFormat, form), hidden).decode()
    sent = _pkcs8(written, passphrase.decode())
    assert sent.startswith("-----BEGIN PRIVATE KEY-----\n")
    read = serialization.load_pem_private_key(sent.encode(), None)
    assert read.private_numbers() == key.private_numbers()
    if not passphrase:
        assert _pkcs8(written, "of another key") == sent


def test_a_file_that_an_option_names_takes_the_place_of_what_was_read_before():
    whole = {"ssl.truststore.certificates": "PEM", "ssl.truststore.type": "PEM"}
    found = HERE._replace(client=whole).with_options(BOTH)
    assert found.client == {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}


def test_an_option_with_another_mechanism_takes_the_place_of_a_token():
    keys = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{MODULE} required;",
        HANDLER: HANDLERS[0],
        URL: "file:///t",
    }
    scram = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": "ScramLoginModule required;"}
    options = {f"kafka.{key}": value for key, value in scram.items()}
    left, right = accesses_of(HERE.with_options(options), keys, "", {})
    assert left == right
    assert left.client == {"security.protocol": "SASL_SSL", **scram}
    left, right = accesses_of(HERE, keys, "", options)
    assert (left.client, right.client) == (keys, {"security.protocol": "SASL_SSL", **scram})
    same = {"kafka.sasl.mechanism": "OAUTHBEARER"}
    assert HERE._replace(client=keys).with_options(same).client == keys
    tokens = {f"kafka.{key}": value for key, value in keys.items()}
    for ordered in (tokens, dict(reversed(tokens.items()))):
        assert HERE._replace(client=scram).with_options(ordered).client == keys


def test_a_token_takes_the_place_of_a_password_at_the_left_and_at_the_right(tmp_path):
    token = {"sasl.mechanism": "OAUTHBEARER", URL: f"file:{token_file(tmp_path)}"}
    options = {f"kafka.{key}": value for key, value in token.items()}
    here = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "ScramLoginModule required;",
    }
    left, right = accesses_of(HERE.with_options(options), here, "", {})
    assert left == right
    assert left.client == sent({URL: token[URL]})
    left, right = accesses_of(HERE, here, "", options)
    assert (left.client, right.client) == (here, sent({URL: token[URL]}))


def test_an_audit_hands_kafkas_client_the_token_of_a_server_as_it_reads_it(monkeypatch):
    monkeypatch.setenv("CLIENT_SECRET", "7Qz")
    keys = {
        **TOKEN_KEYS,
        URL: "https://issuer.example/token",
        f"{CREDENTIALS}.client.id": "spark",
        f"{CREDENTIALS}.client.secret": "env:CLIENT_SECRET",
    }
    stores = {"ssl.truststore.type": "JKS", "ssl.truststore.location": "/trusted.jks"}
    options = {f"kafka.{key}": value for key, value in (keys | stores).items()}
    left, right = accesses_of(HERE.with_options(options), {}, "", {})
    assert left == right
    assert left.client == {
        **stores,
        **TOKEN_KEYS,
        URL: keys[URL],
        HANDLER: HANDLERS[0],
        "sasl.jaas.config": f'{MODULE} required clientId="spark" clientSecret="7Qz";',
    }
    again = {f"kafka.{CREDENTIALS}.client.id": "other"}
    left, right = accesses_of(HERE, left.client, "", again)
    assert 'clientId="spark"' in left.client["sasl.jaas.config"]
    assert 'clientId="other" clientSecret="7Qz"' in right.client["sasl.jaas.config"]


def test_an_audit_takes_a_user_and_a_password_as_the_other_jobs_do():
    keys = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    named = {**keys, "sasl.username": "ann", "sasl.password": "7Qz", "client.id": "auditor"}
    options = {f"kafka.{key}": value for key, value in named.items()}
    left, _ = accesses_of(HERE.with_options(options), {}, "", {})
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="ann" password="7Qz";'
    assert left.client == {**keys, "sasl.jaas.config": jaas, "client.id": "auditor"}


@pytest.mark.parametrize(
    "login",
    [
        {"sasl.mechanism": "GSSAPI", "sasl.jaas.config": "Krb5LoginModule required;"},
        {"sasl.mechanism": "OAUTHBEARER", HANDLER: "example.Handler", URL: "https://h/t"},
        {
            "sasl.mechanism": "OAUTHBEARER",
            HANDLER: HANDLERS[0],
            URL: "https://h/t",
            "sasl.jaas.config": f'{MODULE} required clientId="a" clientSecret="b" ssl.protocol=x;',
        },
    ],
)
def test_an_audit_leaves_other_logins_to_kafkas_client(login):
    keys = {"security.protocol": "SASL_SSL", **login}
    left, _ = accesses_of(HERE, keys, "", {})
    assert left.client == keys


@pytest.mark.parametrize(
    ("exception", "code"),
    [
        ("SaslAuthenticationException", "SASL_AUTHENTICATION_FAILED"),
        ("SslAuthenticationException", "SASL_AUTHENTICATION_FAILED"),
        ("TopicAuthorizationException", "TOPIC_AUTHORIZATION_FAILED"),
        ("TransactionalIdAuthorizationException", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        ("TimeoutException", "UNREACHABLE"),
        ("InvalidTopicException", "KAFKA_CLIENT"),
    ],
)
def test_what_kafkas_client_raises_has_the_code_of_our_client(exception, code):
    assert _code_of(exception) == code


def test_a_token_that_kafkas_client_does_not_get_is_reported_with_its_fault(tmp_path):
    keys = TOKEN_KEYS | {HANDLER: HANDLERS[0], "sasl.jaas.config": f"{MODULE} required;"}
    file = token_file(tmp_path)
    expect_token({**keys, URL: f"file://{file}"})
    expect_token({**keys, URL: "https://h/t", HANDLER: "example.Handler"})
    expect_token({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"})
    with socket.create_server(("127.0.0.1", 0)) as nowhere:
        port = nowhere.getsockname()[1]
    jaas = f'{MODULE} required clientId="a" clientSecret="b";'
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        expect_token({**keys, URL: f"https://127.0.0.1:{port}/t", "sasl.jaas.config": jaas})


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("SASL_AUTHENTICATION_FAILED", 77),
        ("TOPIC_AUTHORIZATION_FAILED", 77),
        ("UNSUPPORTED_SECURITY", 78),
        ("UNREACHABLE", 69),
        ("USAGE", 2),
        ("DATA_LOST", 1),
    ],
)
def test_a_job_ends_with_the_exit_code_of_its_error(code, exit_code):
    with pytest.raises(click.exceptions.Exit) as ended:
        fail_job(JobError("not so", code), Format.table)
    assert ended.value.exit_code == exit_code


def test_an_audit_refuses_a_token_that_cannot_be_used_before_anything_is_sent():
    options = {f"kafka.{key}": value for key, value in TOKEN_KEYS.items()}
    with pytest.raises(JobError, match="a client is missing") as refused:
        accesses_of(HERE.with_options({**options, f"kafka.{URL}": "https://h/t"}), {}, "", {})
    assert refused.value.code == "UNSUPPORTED_SECURITY"


# -- tokens ----------------------------------------------------------------------------------------

TOKEN_KEYS = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
CREDENTIALS = "sasl.oauthbearer.client.credentials"


def token_file(directory):
    file = directory / "token"
    file.write_text("a.b.c")
    file.chmod(0o600)
    return file


def sent(options):
    keys = {f"kafka.{key}": value for key, value in (TOKEN_KEYS | options).items()}
    return job_servers(ClientSettings("h:1", {}), keys).keys


def test_kafkas_client_reads_the_file_of_a_token_as_ours_does(tmp_path):
    file = token_file(tmp_path)
    for place in (f"file:{file}", f"file://{file}"):
        found = sent({URL: place})
        assert found == {
            **TOKEN_KEYS,
            URL: f"file://{file}",
            HANDLER: HANDLERS[0],
            "sasl.jaas.config": f"{MODULE} required;",
        }
        assert job_servers(ClientSettings("h:1", found), {}).keys == found


def test_kafkas_client_asks_a_server_for_a_token_as_ours_does(monkeypatch):
    monkeypatch.setenv("CLIENT_SECRET", 'a "quoted" \\secret')
    found = sent(
        {
            URL: "https://issuer.example/token",
            f"{CREDENTIALS}.client.id": "spark",
            f"{CREDENTIALS}.client.secret": "env:CLIENT_SECRET",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.sub.claim.name": "client",
        }
    )
    assert found["sasl.jaas.config"] == (
        f'{MODULE} required clientId="spark" clientSecret="a \\"quoted\\" \\\\secret" '
        'scope="kafka";'
    )
    assert found["sasl.oauthbearer.sub.claim.name"] == "client"
    assert not [key for key in found if key.startswith(CREDENTIALS)]
    login = link_security(ClientSettings("h:1", found)).login
    assert login.token.client_secret == 'a "quoted" \\secret'
    assert job_servers(ClientSettings("h:1", found), {}).keys == found


@pytest.mark.parametrize("secret", ["env:HOME-secret", "file:/etc/shadow"])
def test_a_client_secret_that_looks_like_a_reference_is_read_no_second_time(secret, monkeypatch):
    monkeypatch.setenv("CLIENT_SECRET", secret)
    options = {
        URL: "https://issuer.example/token",
        f"{CREDENTIALS}.client.id": "spark",
        f"{CREDENTIALS}.client.secret": "env:CLIENT_SECRET",
    }
    with pytest.raises(JobError, match="begins with file: or env:") as refused:
        sent(options)
    assert "shadow" not in str(refused.value) and "HOME" not in str(refused.value)


def test_a_path_that_kafkas_client_would_read_otherwise_is_refused(tmp_path):
    place = tmp_path / "a place"
    place.mkdir()
    with pytest.raises(JobError, match="only letters, digits") as refused:
        sent({URL: f"file:{token_file(place)}"})
    assert refused.value.code == "UNSUPPORTED_SECURITY"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "must be file:PATH"),
        ({URL: "http://h/token"}, "or an https URL"),
        ({URL: "https://h/a,b", f"{CREDENTIALS}.client.id": "a"}, "a client is missing"),
        (
            {
                URL: "https://h/a,b",
                f"{CREDENTIALS}.client.id": "a",
                f"{CREDENTIALS}.client.secret": "b",
            },
            "no spaces, commas or quotes for jobs on Spark; nothing was sent",
        ),
    ],
)
def test_other_places_of_tokens_are_refused(options, reason):
    with pytest.raises(JobError, match=reason) as refused:
        sent(options)
    assert refused.value.code == "UNSUPPORTED_SECURITY"


def test_executors_may_use_the_urls_of_tokens():
    keys = [{URL: "file:///t"}, {URL: "https://h/t"}, {URL: "file:///t"}, {}, {URL: "x -Dy"}]
    urls = token_urls(keys)
    assert urls == ["file:///t", "https://h/t"]
    java = "spark.executor.extraJavaOptions"
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file:///t,https://h/t"
    assert with_token_urls({"a": "b"}, urls) == {"a": "b", java: allowed}
    assert with_token_urls({java: "-Xmx1g"}, urls) == {java: f"-Xmx1g {allowed}"}
    assert with_token_urls({java: "-Xmx1g"}, []) == {java: "-Xmx1g"}


@pytest.mark.parametrize(
    ("own", "before"),
    [
        ("-D{}=https://mine/t", "https://mine/t,"),
        ("-Xmx1g -D{}=https://mine/t,https://h/t -Da=b", "https://mine/t,"),
        ('"-D{}=https://mine/t" -Xmx1g', "https://mine/t,"),
        ("-D{}='https://mine/t' -Xmx1g", "https://mine/t,"),
        ("-D{0}=https://old/t -D{0}=https://mine/t", "https://mine/t,"),
        ("-D{}=", ""),
        ("-Dx.{}=https://mine/t", ""),
    ],
)
@pytest.mark.parametrize("key", ["extraJavaOptions", "defaultJavaOptions"])
def test_executors_keep_the_urls_that_the_settings_allow(key, own, before):
    name = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
    conf = {f"spark.executor.{key}": own.format(name)}
    found = with_token_urls(conf, ["https://h/t"])
    java = found["spark.executor.extraJavaOptions"]
    own_java = conf.get("spark.executor.extraJavaOptions", "")
    assert java == f"{own_java} -D{name}={before}https://h/t".strip()
    assert {**found, **conf} == {"spark.executor.extraJavaOptions": java, **conf}


ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
JAVA = "spark.executor.extraJavaOptions"


@pytest.mark.parametrize("between", [" ", "=", " : ", "\t"])
def test_executors_keep_the_options_of_spark_defaults(between, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert with_token_urls({}, ["https://h/t"]) == {JAVA: f"-D{ALLOWED}=https://h/t"}
    lines = ["# of the site", f"{JAVA}{between}-Xmx1g -Da=b ", "spark.executor.memory 1g"]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    assert with_token_urls({"a": "b"}, ["https://h/t"]) == {
        "a": "b",
        JAVA: f"-Xmx1g -Da=b -D{ALLOWED}=https://h/t",
    }
    assert with_token_urls({JAVA: "-Xs"}, ["x:/t"]) == {JAVA: f"-Xs -D{ALLOWED}=x:/t"}
    assert with_token_urls({"a": "b"}, []) == {"a": "b"}


def test_a_url_may_be_of_a_file_in_both_forms():
    keys = [{URL: "file:/t"}, {URL: "file:t"}, {URL: "FILE:/t"}, {URL: "file:///t"}]
    assert token_urls(keys) == ["file:/t", "file:///t"]


@pytest.mark.parametrize("url", ["https://h/t?key=7Qz", "https://a:7Qz@h/t"])
def test_options_of_executors_show_no_secret_of_a_url(url, monkeypatch):
    with pytest.raises(JobError, match="list of processes") as refused:
        with_token_urls({}, token_urls([{URL: url}]))
    assert "7Qz" not in str(refused.value)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert with_token_urls({}, [url]) == {}


@pytest.mark.parametrize("character", ["\0", "\n", "\r", "\t", "\x7f", "\x85"])
def test_control_characters_of_an_option_are_refused(character):
    with pytest.raises(JobError, match="a password: must have no control characters") as refused:
        quoted(f"7Qz{character}", "a password")
    assert "7Qz" not in str(refused.value)
    keys = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": f"an{character}n",
        "sasl.password": "7Qz",
    }
    with pytest.raises(JobError, match="a user: must have no control characters"):
        job_servers(ClientSettings("h:1", keys), {})


class _Jvm:
    """What a session of Spark shows of its JVM: the properties of java.lang.System."""

    def __init__(self, properties):
        self.properties = properties
        self.sparkContext = self._jvm = self.java = self.lang = self.System = self

    def getProperty(self, name):
        return self.properties.get(name)

    def setProperty(self, name, value):
        self.properties[name] = value

    def clearProperty(self, name):
        del self.properties[name]


@pytest.mark.parametrize("before", [{}, {ALLOWED: "https://mine/t"}])
def test_the_driver_may_use_the_urls_while_it_works(before):
    spark = _Jvm(dict(before))
    with token_urls_allowed(spark, []):
        assert spark.properties == before
    with pytest.raises(JobError), token_urls_allowed(spark, ["https://h/t"]):
        allowed = spark.properties[ALLOWED].split(",")
        assert allowed == [*before.values(), "https://h/t"]
        raise JobError("the work failed")
    assert spark.properties == before


def test_a_session_of_spark_submit_keeps_its_options(monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert with_token_urls({"a": "b"}, ["file:///t"]) == {"a": "b"}


def test_spark_hides_every_key_of_a_token():
    hidden = re.compile(REDACTED["spark.sql.redaction.options.regex"])
    keys = (URL, HANDLER, f"{CREDENTIALS}.client.secret", "sasl.jaas.config")
    assert all(hidden.search(f"kafka.{key}") for key in keys)
