"""Goal: format("ledger") reads from the bookies of a cluster, also after one has died.

Method: ZooKeeper, three bookies, one gateway, all processes. Rows are compared with Spark's own
Kafka source, which the gateway serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.pipelines.direct import register
from gateway.pipelines.shared.topics import Topics
from tests.cluster.ownership_rig import OwnershipRig
from tests.histories.background import Background
from tests.pipelines.direct_rig import Rig, differences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.compat,
    pytest.mark.proof,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]

TOPIC = "spread"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OwnershipRig]:
    with (
        Background() as background,
        OwnershipRig(tmp_path / "cluster", background, gateways=1) as started,
    ):
        yield started


def test_rows_are_the_kafka_sources_also_after_a_bookie_has_died(
    spark: SparkSession, cluster: OwnershipRig
) -> None:
    register(spark)
    metadata = f"zk://{cluster.world.zookeeper.servers}"
    rig = Rig(spark, cluster.gateways.bootstrap, metadata)
    Topics(rig.bootstrap).create(TOPIC, 2, {"segment.bytes": str(1 << 20)})
    for partition in (0, 1):
        for codec in (None, "zstd"):
            rig.add(TOPIC, partition, 900, codec)
    ends = rig.ends(TOPIC)
    kafka = rig.kafka(TOPIC)
    assert differences(rig.direct(TOPIC, endingOffsets=ends), kafka) == 0
    cluster.world.bookies[0].kill()
    assert differences(rig.direct(TOPIC, endingOffsets=ends), kafka) == 0
    rig.loader.close()
