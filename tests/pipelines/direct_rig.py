"""Both sources over one broker: records for them, and a comparison of their rows."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

from tests.compat.clients.base import ProducerOptions, Record
from tests.compat.clients.with_aiokafka import Aiokafka

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_MS = 1_760_000_000_000
PER_SEND = 300


_numbers = itertools.count(1)


def unused() -> str:
    """Return an unused topic name."""
    return f"direct-{next(_numbers)}-t"


class Rig:
    """A broker, its topics, and both sources."""

    def __init__(self, spark: SparkSession, bootstrap: str, metadata: str) -> None:
        self.spark, self.bootstrap, self.metadata = spark, bootstrap, metadata
        self.loader = Aiokafka(bootstrap)

    def direct(self, topic: str = "", **options: Any) -> DataFrame:
        reader = self.spark.read.format("ledger").option("metadata", self.metadata)
        options = {"includeHeaders": True, **options}
        return reader.options(**options).load(topic) if topic else reader.options(**options).load()

    def kafka(self, topic: str = "", **options: Any) -> DataFrame:
        reader = self.spark.read.format("kafka")
        reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.options(**{"includeHeaders": True, **options})
        return (reader.option("subscribe", topic) if topic else reader).load()

    def ends(self, *topics: str) -> str:
        """Return the ends of all partitions in JSON, as the gateway reports them."""
        found = {
            topic: {
                str(n): self.loader.bounds(topic, n)[1]
                for n in range(self.loader.partitions(topic))
            }
            for topic in topics
        }
        return json.dumps(found)

    def add(
        self, topic: str, partition: int = 0, count: int = PER_SEND, codec: str | None = None
    ) -> None:
        producer = self.loader.producer(ProducerOptions(codec=codec))
        first = self.loader.bounds(topic, partition)[1]
        producer.send(topic, records(first, count), partition)
        producer.wait()
        producer.close()


def records(first: int, count: int) -> list[Record]:
    """Make records with nulls, headers, and incompressible values."""
    chance = random.Random(first)
    made: list[Record] = []
    for n in range(first, first + count):
        key = None if n % 7 == 0 else b"key %d" % n
        value = None if n % 11 == 0 and key else chance.randbytes(chance.randrange(1500))
        headers = (("n", b"%d" % n), ("empty", None), ("", b"")) if n % 3 == 0 else ()
        made.append(Record(key, value, headers, START_MS + 10 * n))
    return made


def differences(one: DataFrame, other: DataFrame) -> int:
    """Return the rows that only one of the frames has, counting duplicates."""
    assert one.columns == other.columns
    assert one.schema == other.schema
    return one.exceptAll(other).union(other.exceptAll(one)).count()
