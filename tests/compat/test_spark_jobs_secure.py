"""Goal: jobs on Spark archive, replay and audit over SASL_SSL, and Spark shows no secret.

Method: one `gateway dev --secure`, and the commands as processes of their own, each with a new
Spark that writes event files. The keys are those of `client.properties`, or options by Spark's
names.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.admin.client_settings import SECRET_KEYS, ClientSettings
from gateway.admin.command_config import client_keys_of
from gateway.pipelines.archives.exact_read import read_exactly
from gateway.pipelines.archives.holes import find_holes
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import job_servers, secrets_hidden
from gateway.pipelines.shared.kafka_source import Isolation
from gateway.pipelines.shared.partitions import OffsetRange
from gateway.pipelines.shared.spark_errors import translate_spark_errors
from tests.compat.test_secure_dev import Started
from tests.peers.spark_jobs import JobSite

pytestmark = [
    pytest.mark.compat,
    pytest.mark.process,
    pytest.mark.proof,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
]
ROWS = 300
TOPIC = "orders"
BLIND_PASSWORD = "marked-secret-of-blind"


class Site(JobSite):
    """A gateway with TLS, a user and ACLs, and a topic in it that was archived."""

    def __init__(self, directory):
        self.gateway = Started(directory / "data")
        self.properties = self.gateway.place / "client.properties"
        self.password = (self.gateway.place / "admin.password").read_text().strip()
        blind = {"BLIND_PASSWORD": BLIND_PASSWORD}
        super().__init__(directory, [self.password, BLIND_PASSWORD], blind)
        self.archive = directory / "archive"
        self.run("topic", "create", TOPIC, "-p", "2", *self.by_file())
        lines = "".join(f"record {number}\n" for number in range(ROWS))
        self.run("topic", "produce", TOPIC, *self.by_file(), stdin=lines)

    def by_file(self):
        return ("-b", self.gateway.server, "--command-config", str(self.properties))

    def by_options(self, mechanism, password, user="admin"):
        """Return the options by Spark's names."""
        keys = self.keys(mechanism, password, user)
        options = [f"--option=kafka.{key}={value}" for key, value in keys.items()]
        return ("-b", self.gateway.server, *options)

    def keys(self, mechanism, password, user):
        """Return the keys of Kafka's client for this user."""
        kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
        module = f"org.apache.kafka.common.security.{kind}LoginModule required"
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.gateway.place / "ca.pem"),
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} username="{user}" password="{password}";',
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("jobs"))
    yield made
    made.gateway.process.stop(60.0)
    assert "Traceback" not in made.gateway.output()


def test_a_topic_is_archived_replayed_and_audited(site):
    done = site.job("archive", TOPIC, "--to", str(site.archive), *site.by_file())
    assert (done["offsets"], done["set_aside"]) == (ROWS, [])
    ways = {"once": ["--transactional", *site.by_file()], "twice": options(site, "PLAIN")}
    for target, words in ways.items():
        place = ("--from", str(site.archive), "--topic", TOPIC, "--to-topic", target)
        done = site.job("replay", *place, "--create", *words)
        assert done["records"] == done["written"] == ROWS
    sides = ("topic:once", "topic:twice", "--align", "rank", "--allow-gaps")
    assert site.job("audit", *sides, *site.by_file())["verdict"] == "equal"
    shown = site.shown()
    assert site.password not in shown
    assert "SparkListenerSQLExecutionStart" in shown  # with the plans of the queries


def options(site, mechanism):
    return site.by_options(mechanism, site.password)


def test_a_wrong_password_is_one_line(site):
    words = ("archive", TOPIC, "--to", str(site.archive), *site.by_options("PLAIN", "wrong"))
    told = site.job(*words, code=77)
    assert told["code"] == "SASL_AUTHENTICATION_FAILED"
    assert "wrong" not in told["error"]


@pytest.fixture(scope="module")
def blind(site):
    """The password of a user that may see the topic and may not read it."""
    site.run("user", "add", "blind", "--password", "env:BLIND_PASSWORD", *site.by_file())
    for resource in (f"topic:{TOPIC}", "cluster"):
        rights = ("User:blind", "describe,describe-configs", resource)
        site.run("acl", "add", *rights, *site.by_file())
    return BLIND_PASSWORD


def test_a_right_that_is_refused_to_a_task_has_the_exit_code_of_a_refusal(site, blind):
    login = site.by_options("SCRAM-SHA-512", blind, "blind")
    place = str(site.directory / "denied")
    for job in (
        ("archive", TOPIC, "--to", place),
        ("audit", f"topic:{TOPIC}", f"topic:{TOPIC}"),
    ):
        told = site.job(*job, *login, code=77)
        assert told["code"] == "TOPIC_AUTHORIZATION_FAILED"
        assert TOPIC in told["error"]


def test_a_right_that_is_refused_to_a_task_in_python_keeps_its_code(site, blind, spark):
    keys = site.keys("SCRAM-SHA-512", blind, "blind")
    servers = job_servers(ClientSettings(site.gateway.server, keys), {})
    wanted = [OffsetRange(TOPIC, 0, 0, 5)]
    committed = Isolation.read_committed
    for frame in (
        read_exactly(spark, servers, wanted, committed, 10),
        find_holes(spark, servers, wanted, committed),
    ):
        with pytest.raises(JobError, match=TOPIC) as raised:
            translate_spark_errors(frame.collect)
        assert raised.value.code == "TOPIC_AUTHORIZATION_FAILED"


def test_other_options_are_refused_before_anything_is_sent(site):
    for word, said in (
        ("kafka.isolation.level=x", "must be a key of TLS or SASL"),
        ("security.protocol=SSL", "must be a key of TLS or SASL"),
        ("kafka.sasl.password", "must be key=value"),
    ):
        told = site.run(
            "job",
            "archive",
            TOPIC,
            "--to",
            "x",
            "--option",
            word,
            "-b",
            site.gateway.server,
            code=2,
        )
        assert said in told and told.count("\n") == 1
    told = site.run(
        *("job", "archive", TOPIC, "--to", "x", "-b", site.gateway.server),
        *("--option", "kafka.security.protocol=SASL_SSL"),
        *("--option", "kafka.sasl.mechanism=GSSAPI"),
        code=78,
    )
    assert "nothing was sent" in told


def test_a_session_of_the_user_hides_the_secrets_too(spark):
    key = "spark.sql.redaction.options.regex"
    before = spark.conf.get(key, None)
    for own in (None, "(?i)mine", "(?i)jaas|ssl[.].*key|password|secret|passphrase"):
        spark.conf.unset(key) if own is None else spark.conf.set(key, own)
        with secrets_hidden(spark):
            pattern = spark._jvm.java.util.regex.Pattern.compile(spark.conf.get(key))
            assert all(pattern.matcher(f"kafka.{each}").find() for each in SECRET_KEYS)
            assert own != "(?i)mine" or pattern.matcher("kafka.mine").find()
    spark.conf.unset(key) if before is None else spark.conf.set(key, before)


def test_executors_need_no_file(site):
    """What tasks get is the content of the files."""
    keys = client_keys_of(str(site.properties))
    found = job_servers(ClientSettings(site.gateway.server, keys), {}).keys
    assert not [value for value in found.values() if str(Path(site.gateway.place)) in value]
    assert "BEGIN CERTIFICATE" in found["ssl.truststore.certificates"]
