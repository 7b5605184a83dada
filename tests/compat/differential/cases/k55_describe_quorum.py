"""DescribeQuorum: the partition of the metadata, and everything else."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.script import Script, case

KEY = 55
METADATA = "__cluster_metadata"


def topic(name: str, *indexes: int) -> dict[str, Any]:
    return {
        "topic_name": name,
        "partitions": [{"partition_index": index} for index in indexes],
    }


@case(KEY)
def the_metadata(script: Script) -> None:
    script.ask(topics=[topic(METADATA, 0)])


@case(KEY)
def other_partitions(script: Script) -> None:
    absent = script.name("absent")
    for topics in (
        [],
        [topic(absent, 0)],
        [topic(METADATA, 1)],
        [topic(METADATA, 0, 1)],
        [topic(METADATA, 0), topic(absent, 0, -1)],
        [topic(METADATA)],
        [topic(METADATA, 0), topic(METADATA, 0)],
    ):
        script.ask(topics=topics)
