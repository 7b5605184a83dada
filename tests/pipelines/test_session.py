"""Goal: a job fetches the connectors that its places need, in versions that fit its Spark."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pyspark
import pytest

from gateway.pipelines.shared.session import S3_EXCLUDED, connectors


@pytest.mark.parametrize(
    "places", [("/data/archive",), ("hdfs://host/x", "archive:file:/x#t"), ("lake.archives.t", "")]
)
def test_without_a_place_in_s3_only_the_connectors_for_kafka_and_iceberg_are_fetched(
    places: tuple[str, ...],
) -> None:
    found = connectors(places)
    assert list(found) == ["spark.jars.packages"]
    kafka, iceberg = found["spark.jars.packages"].split(",")
    assert kafka.endswith(f":{version('pyspark')}")
    line = version("pyspark").rpartition(".")[0]
    assert f"iceberg-spark-runtime-{line}_" in iceberg


@pytest.mark.parametrize("place", ["s3a://bucket/x", "archive:s3a://bucket/x#topic", "s3://b/lake"])
def test_for_a_place_in_s3_its_connector_fits_the_hadoop_of_spark(place: str) -> None:
    found = connectors(("flights", place))
    packages = found["spark.jars.packages"].split(",")
    (s3a,) = [each for each in packages if ":hadoop-aws:" in each]
    jars = Path(pyspark.__file__).parent / "jars"
    assert (jars / f"hadoop-client-api-{s3a.rpartition(':')[2]}.jar").exists()
    assert found["spark.jars.excludes"] == S3_EXCLUDED
