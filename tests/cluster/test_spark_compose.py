"""Goal: the compose file of Spark is what it says, and the jobs run on a cluster of Spark.

Method: the file against the published schema and beside the file of the gateways; then its master
and a worker as local processes, and the archive job submitted to them, judged by pyarrow.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import check_jsonschema
import jsonschema
import pyarrow.dataset
import pytest
from ruamel.yaml import YAML

from gateway.process import serve
from ledger.command_line.program import flags_of
from tests.compat.clients.base import ProducerOptions, Record
from tests.compat.clients.with_aiokafka import Aiokafka
from tests.house import ROOT
from tests.peers import compose, spark_cluster
from tests.peers.gateway import Gateway
from tests.peers.spark import conf_words
from tests.peers.spark_cluster import SparkCluster, spark_home

SCHEMA = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor/compose-spec.json"
RECORDS = 500
JOB_S_MAX = 280.0
GATEWAYS = ("gateway-1", "gateway-2", "gateway-3")


def test_the_file_keeps_to_the_schema_and_names_what_exists():
    document = YAML(typ="safe").load(spark_cluster.FILE)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    services = {**compose.services(), **document["services"]}
    for service in document["services"].values():
        assert set(service.get("depends_on", ())) <= set(services)
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
            assert {each.split(":")[0] for each in service["volumes"]} <= set(document["volumes"])


def test_the_jobs_use_the_listener_that_gateways_have_inside():
    servers = spark_cluster.services()["submit"]["environment"]["GATEWAY_BOOTSTRAP"]
    advertised = []
    for name in GATEWAYS:
        words = compose.services()[name]["command"][4:]
        settings = serve.settings_of(flags_of(serve.serve, words))
        assert not serve.faults_of(settings)
        _, inside = settings["advertise"]
        advertised.append(f"{inside.host}:{inside.port}")
    assert servers.split(",") == advertised


def test_the_programs_of_the_commands_come_with_pyspark():
    for name, service in spark_cluster.services().items():
        if "master" in name or "worker" in name:
            assert (spark_home() / "bin" / service["command"][0]).is_file()


@pytest.mark.proof
def test_a_job_runs_on_a_master_and_a_worker_of_their_own(tmp_path):
    with Gateway(tmp_path / "data") as gateway:
        loader = Aiokafka(gateway.bootstrap)
        loader.create_topic("orders", 2)
        for partition in (0, 1):
            producer = loader.producer(ProducerOptions())
            records = [Record(b"%d" % n, b"value %d" % n, (), 1_000 + n) for n in range(RECORDS)]
            producer.send("orders", records, partition)
            producer.wait()
            producer.close()
        loader.close()
        with SparkCluster(tmp_path / "spark") as spark:
            job = [sys.executable, "-m", "gateway", "job", "archive", "orders", "-o", "json"]
            job += ["--to", str(tmp_path / "archive"), "--bootstrap", gateway.bootstrap]
            job += ["--master", spark.master, *conf_words(tmp_path / "spark")]
            job += ["--conf", "spark.executor.memory=512m"]
            done = subprocess.run(job, capture_output=True, text=True, timeout=JOB_S_MAX)
        assert done.returncode == 0, done.stderr[-3000:]
    stored = pyarrow.dataset.dataset(
        tmp_path / "archive", partitioning="hive", exclude_invalid_files=True
    ).to_table(columns=["partition", "offset", "value"])
    found = sorted(zip(*(stored[name].to_pylist() for name in stored.column_names), strict=True))
    assert found == [(p, n, b"value %d" % n) for p in (0, 1) for n in range(RECORDS)]
