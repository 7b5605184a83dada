"""Goal: Prometheus understands what we serve, and each query and alert of ours has its samples.

Method: Debian's promtool checks rules, alerts and the text of a page; a planted query without a
metric is found. Under `make proof` Debian's Prometheus scrapes a gateway, three bookies and an
auditor under load, and is asked the query of each panel and rule.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from contextlib import ExitStack, suppress

import pytest
from confluent_kafka import Producer, TopicPartition
from ruamel.yaml import YAML

from tests.dashboards import as_asked, queries
from tests.gateway.admin_commands import consumer, run
from tests.gateway.alert_cases import CASES, MINUTES
from tests.gateway.test_dashboards import RULES, rules
from tests.house import ROOT
from tests.peers import install
from tests.peers.bookie import BookieProcess
from tests.peers.gateway import ClusterGateway, Gateway
from tests.peers.processes import Process, ServerProcess, TookTooLong, free_port, wait_until

SCRAPE_S = 1
LOAD_S_MAX = 120
PARTITIONS = 6  # led by both gateways
QUIET_RULES = {"RecordsLost", "CleaningFailed", "RequestErrors"}
"""Their metrics have samples only when something is wrong."""
KAFKA_EXPORTERS = {"kafka_consumergroup_current_offset_sum", "kafka_consumergroup_lag_sum"}


def promtool(*words, stdin=""):
    """Exit code and all output."""
    argv = [install.promtool(), *map(str, words)]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


# the rules


def test_promtool_accepts_the_rules_and_the_configuration():
    code, said = promtool("check", "rules", RULES)
    assert (code, f"{len(CASES)} rules found" in said) == (0, True), said
    config = ROOT / "compose/prometheus/prometheus.yml"
    code, said = promtool("check", "config", "--syntax-only", config)
    assert code == 0, said


def test_each_alert_fires_and_stays_silent(tmp_path):
    assert list(CASES) == [rule["alert"] for rule in rules()]
    tests = [each for rule in rules() for each in firing_and_silent(rule)]
    write(tmp_path / "tests.yml", tests)
    code, said = promtool("test", "rules", tmp_path / "tests.yml")
    assert (code, "SUCCESS" in said) == (0, True), said


def test_an_alert_that_would_not_fire_is_found(tmp_path):
    (rule,) = [each for each in rules() if each["alert"] == "GatewayNotReady"]
    firing, silent = firing_and_silent(rule)
    firing["input_series"] = silent["input_series"]
    write(tmp_path / "tests.yml", [firing])
    code, said = promtool("test", "rules", tmp_path / "tests.yml")
    assert (code, "FAILED" in said) == (1, True), said


def firing_and_silent(rule):
    """One test in which it fires, and one in which it does not."""
    name, case = rule["alert"], CASES[rule["alert"]]
    for series, alerts in ((case.fires, [case.labels]), (case.silent, [])):
        expected = [{"exp_labels": {**rule["labels"], **labels}} for labels in alerts]
        yield {
            "interval": "1m",
            "input_series": [{"series": key, "values": value} for key, value in series.items()],
            "promql_expr_test": [],
            "alert_rule_test": [
                {
                    "eval_time": f"{MINUTES - 1}m",
                    "alertname": name,
                    "exp_alerts": [
                        {**each, "exp_annotations": annotations(rule, series, each["exp_labels"])}
                        for each in expected
                    ],
                }
            ],
        }


def annotations(rule, series, labels):
    """Its annotations, with what promtool computes of the series in their place."""
    found = dict(rule["annotations"])
    for key, value in labels.items():
        found["summary"] = found["summary"].replace(f"{{{{ $labels.{key} }}}}", value)
    if "$value" in found["summary"]:
        found["summary"] = re.sub(
            r"\{\{[^}]*\$value[^}]*\}\}", VALUES[rule["alert"]], found["summary"]
        )
    return found


VALUES = {
    "BookieSyncSlow": "2.47s",
    "LedgersUnderReplicated": "3",
    "LedgersHopeless": "1",
    "PartitionsBlocked": "2",
    "GroupLagging": "6m 40s",
    "ProduceSlow": "2.47s",
    "RequestErrors": "10%",
    "LoopLagging": "2.41s",
    "EnsembleChanging": "15",
    "MetricsLeftOut": "7",
}


def write(path, tests):
    path.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))


# the text


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with Gateway(tmp_path_factory.mktemp("data"), ["--metrics-port", "0"]) as broker:
        assert run("topic", "create", "t", bootstrap=broker.bootstrap)[0] == 0
        write_records(broker.bootstrap, 100)
        reader = consumer(broker, "readers")
        reader.subscribe(["t"])
        wait_until(lambda: reader.poll(0.2) is not None, "a record is read")
        reader.commit(asynchronous=False)
        reader.close()
        yield broker


def write_records(bootstrap, count, topic="t"):
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number), key=str(number % 3 if topic == "c" else number))
    assert producer.flush(60) == 0


def test_promtool_finds_only_the_sums_of_kafka_exporter(gateway):
    url = re.search(r"metrics: (\S+)", gateway.process.output())[1]
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    _, said = promtool("check", "metrics", stdin=text)
    assert {line.split()[0] for line in said.splitlines() if line.strip()} == KAFKA_EXPORTERS, said


# under load


class Prometheus(ServerProcess):
    """Debian's Prometheus with our rules, scraping these addresses by job."""

    start_s_max = 60.0

    def __init__(self, data, jobs):
        super().__init__(data)
        self.jobs = jobs

    def prepare(self):
        super().prepare()
        self.data.mkdir(exist_ok=True)
        scrapes = [
            {"job_name": name, "static_configs": [{"targets": targets}]}
            for name, targets in self.jobs.items()
        ]
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(RULES)],
            "scrape_configs": scrapes,
        }
        with (self.data / "prometheus.yml").open("w") as file:
            YAML(typ="safe").dump(config, file)

    def argv(self):
        return [
            install.prometheus("prometheus"),
            f"--config.file={self.data / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.data / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def serves(self):
        try:
            return bool(self.get("/-/ready"))
        except OSError:
            return False

    def get(self, path, **query):
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read().decode()

    def ask(self, expr):
        """The samples of a query as of now."""
        found = json.loads(self.get("/api/v1/query", query=expr))
        assert found["status"] == "success"
        return found["data"]["result"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory, zookeeper):
    """A Prometheus that watches a cluster, and one of its two gateways."""
    place = tmp_path_factory.mktemp("watched")
    chroot = zookeeper.servers + zookeeper.unused_chroot()
    ports = {name: free_port() for name in ("g0", "g1", "b1", "b2", "b3", "a")}
    with ExitStack() as stack:
        for number in (1, 2, 3):
            options = ("--http-port", str(ports[f"b{number}"]))
            bookie = BookieProcess(
                place / f"b{number}", chroot, options, name=f"b{number}", rack=f"/r{number}"
            )
            stack.enter_context(bookie)
        audit = ("ledger", "audit", "--zookeeper", chroot, "--http-port", str(ports["a"]))
        stack.enter_context(
            Process([sys.executable, "-m", *audit], place / "a.log", errors=place / "a.errors")
        )
        for node_id in (0, 1):
            options = ("--metrics-port", str(ports[f"g{node_id}"]), "--replication-factor", "3")
            gateway = ClusterGateway(place / f"g{node_id}", chroot, options, node_id=node_id)
            stack.enter_context(gateway)
        jobs = {
            "gateways": [f"127.0.0.1:{ports[name]}" for name in ("g0", "g1")],
            "bookies": [f"127.0.0.1:{ports[name]}" for name in ("b1", "b2", "b3")],
            "auditors": [f"127.0.0.1:{ports['a']}"],
        }
        prometheus = stack.enter_context(Prometheus(place / "prometheus", jobs))
        created = run("topic", "create", "t", "-p", str(PARTITIONS), bootstrap=gateway.bootstrap)
        assert created[0] == 0
        compacted = ("topic", "create", "c", "--config", "cleanup.policy=compact")
        assert run(*compacted, bootstrap=gateway.bootstrap)[0] == 0
        yield prometheus, gateway


@pytest.mark.proof
@pytest.mark.slow
def test_each_panel_and_rule_has_samples_under_load(watched):
    prometheus, gateway = watched
    reader = consumer(gateway, "readers")
    reader.subscribe(["t"])
    wanted = {place: as_asked(query.expr) for place, query in queries() if not query.quiet}
    wanted |= {rule["alert"]: without_bound(rule) for rule in rules()}
    missing = set(wanted) - QUIET_RULES

    def all_have_samples():
        write_records(gateway.bootstrap, 200)
        write_records(gateway.bootstrap, 10, "c")
        reader.poll(0.5)
        reader.commit(asynchronous=True)
        missing.difference_update({name for name in missing if prometheus.ask(wanted[name])})
        return not missing

    with suppress(TookTooLong):
        wait_until(all_have_samples, "all samples", LOAD_S_MAX, pause_s=1)
    reader.close()
    assert missing == set()
    for place, query in queries():
        prometheus.ask(as_asked(query.expr))  # also those that may be quiet are no faults
        assert place


@pytest.mark.proof
def test_a_group_lags_in_seconds_at_partitions_of_both_gateways(watched):
    prometheus, gateway = watched
    reader = consumer(gateway, "behind")
    write_records(gateway.bootstrap, 100)
    places = [TopicPartition("t", index, 0) for index in range(PARTITIONS)]
    reader.commit(offsets=places, asynchronous=False)
    reader.close()
    of_group = 'gateway_consumergroup_lag_seconds{consumergroup="behind"} > 0'
    wait_until(lambda: len(prometheus.ask(of_group)) == PARTITIONS, "all lags", pause_s=1)
    leaders = prometheus.ask('count by (instance) (kafka_topic_partition_leader{topic="t"})')
    assert len(leaders) == 2
    once = prometheus.ask('count(kafka_consumergroup_lag{consumergroup="behind"})')
    assert once[0]["value"][1] == str(PARTITIONS)


@pytest.mark.proof
def test_slow_requests_and_health_are_those_of_both_gateways(watched):
    _, gateway = watched
    write_records(gateway.bootstrap, 100)
    code, out, errors = run("slow", "-n", "200", "-o", "json", bootstrap=gateway.bootstrap)
    assert (code, errors) == (0, "")
    assert {row["node_id"] for row in json.loads(out)} == {0, 1}
    assert run("health", bootstrap=gateway.bootstrap)[1] == "gateway 1 is ready\n"


@pytest.mark.proof
def test_a_query_without_a_metric_has_no_samples(watched):
    prometheus, _ = watched
    assert prometheus.ask("gateway_requests_totals") == []
    wait_until(lambda: prometheus.ask("gateway_ready"), "a scrape")
    assert prometheus.ask("gateway_ready")[0]["value"][1] == "1"


@pytest.mark.proof
def test_no_alert_of_a_healthy_cluster_fires(watched):
    prometheus, _ = watched
    wait_until(lambda: prometheus.ask("sum(bookie_audit_leader) == 1"), "an auditor")
    found = json.loads(prometheus.get("/api/v1/alerts"))["data"]["alerts"]
    assert [each["labels"]["alertname"] for each in found if each["state"] == "firing"] == []


def without_bound(rule):
    """Its query without the comparison at the end, which is false while all is well."""
    unbounded = re.sub(r"\s*(==|<|>|!=)\s*[\d.]+$", "", rule["expr"])
    return unbounded.replace(" < ", " - ")
