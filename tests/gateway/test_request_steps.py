"""Goal: a request with very many elements lets other tasks run while it is handled.

Method: requests at the handlers in Kafka's bytes on virtual time. The lookups and other steps that
one turn of the event loop makes are counted, not their time.
"""

from tests.gateway.stream_cluster import FETCH, started_cluster
from tests.sim.turns import most_between_turns


class Calls:
    """Counts the calls of one method of an object."""

    def __init__(self, monkeypatch, owner, name):
        self.made = 0
        self._called = getattr(owner, name)
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args, **more):
        self.made += 1
        return self._called(*args, **more)

    def count(self):
        return self.made


# Fetch

EXECUTOR = "consumer-spark-kafka-source-0f8fad5b-d9cb-469f-a165-70867728950e--7-executor-1"


async def test_the_partitions_that_an_executor_of_spark_names_are_noted_in_parts(monkeypatch):
    async with started_cluster() as cluster:
        await cluster.topic()
        cluster.client_id = EXECUTOR
        entry = {"fetch_offset": 0, "partition_max_bytes": 1_000}
        partitions = [entry | {"partition": index} for index in range(20_000)]
        fields = {
            "replica_id": -1,
            "max_wait_ms": 0,
            "min_bytes": 0,
            "topics": [{"topic": "t", "partitions": partitions}],
        }
        lookups = Calls(monkeypatch, cluster.catalog, "by_name_or_id")
        work = cluster.encoded(FETCH, 4, **fields)
        _, most = await most_between_turns(work, lookups.count)
        assert lookups.made > 20_000
        assert most <= 1_000
        group = await cluster.context.read_only_groups.find(EXECUTOR[9:-2])
        assert list(group.fetches) == [(cluster.catalog.by_name("t").topic_id, 0)]
