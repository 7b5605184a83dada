"""Goal: Spark's own Kafka source and sink read and write over SASL_SSL, and a wrong password fails.

Method: one Spark session with its kafka-clients 3.9, and the gateway of the matrix of clients.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from tests.compat.test_secure_matrix import PASSWORD, MatrixGateway, command
from tests.gateway.issuer import Issuer
from tests.gateway.pki import Authority

pytestmark = [
    pytest.mark.compat,
    pytest.mark.process,
    pytest.mark.proof,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore"),
]
ROWS = 500


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("pki") / "ca")
    authority.issue("server")
    (authority.path / "jwks.json").write_bytes(Issuer().jwks())
    with MatrixGateway(tmp_path_factory.mktemp("spark"), authority) as started:
        done = command("user", "add", "alice", "--password", "env:MARKED", "-b", started.bootstrap)
        assert done.returncode == 0, done.stderr
        yield started
        assert PASSWORD not in started.output()


def options_of(gateway, mechanism, password=PASSWORD):
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    module = f"org.apache.kafka.common.security.{kind}LoginModule required"
    keys = {
        "bootstrap.servers": gateway.at("LOGIN"),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(gateway.authority.trusted),
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} username="alice" password="{password}";',
    }
    return {f"kafka.{key}": value for key, value in keys.items()}


def written(spark: Any, topic: str, options: dict[str, str]) -> None:
    rows = spark.range(ROWS).select(F.col("id").cast("string").alias("value"))
    rows.write.format("kafka").options(**options).option("topic", topic).save()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_spark_writes_and_reads_by_a_login(spark, gateway, mechanism, tmp_path):
    topic, options = f"spark-{mechanism}", options_of(gateway, mechanism)
    written(spark, topic, options)
    source = spark.read.format("kafka").options(**options).option("subscribe", topic).load()
    found = source.select(F.col("value").cast("string").cast("int")).collect()
    assert sorted(row[0] for row in found) == list(range(ROWS))
    stream = spark.readStream.format("kafka").options(**options).option("subscribe", topic)
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .selectExpr("value")
        .writeStream.format("kafka")
        .options(**options)
        .option("topic", f"{topic}-copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    copied = spark.read.format("kafka").options(**options).option("subscribe", f"{topic}-copy")
    assert copied.load().count() == ROWS


def test_spark_with_a_wrong_password_fails(spark, gateway):
    with pytest.raises(Exception, match="invalid credentials with SASL mechanism SCRAM-SHA-512"):
        written(spark, "spark-wrong", options_of(gateway, "SCRAM-SHA-512", "wrong"))
