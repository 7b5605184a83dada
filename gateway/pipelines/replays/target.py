"""The topic that a replay writes to: checks, creation and its end offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from gateway.admin.client import AdminClient, raise_for
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.kafka_servers import KafkaServers
from gateway.pipelines.shared.topics import Topics, run_admin

_DESCRIBE_CONFIGS, _INIT_PRODUCER_ID = 32, 22
_TOPIC_RESOURCE = 2
_RETRY_S, _RETRY_S_MAX = 0.1, 20.0
_WANTED = ("message.timestamp.type", "max.message.bytes", "retention.ms", "cleanup.policy")
CREATED_WITH = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
"""Settings of a created topic. Retention compares timestamps, and replayed records are old."""


class ReplayTarget(NamedTuple):
    """The target topic. `ends` maps each partition to the offset that its next record will get.

    `held` is the number of offsets from the log starts to the ends.
    """

    name: str
    topic_id: str
    configs: dict[str, str]
    ends: dict[int, int]
    held: int = 0

    @property
    def batch_bytes_max(self) -> int:
        return int(self.configs.get("max.message.bytes") or 2**20)


class ProducerId(NamedTuple):
    number: int
    epoch: int


def create_if_missing(topics: Topics, name: str, partitions: int) -> None:
    """Create the topic with unlimited retention, unless it exists. Raises JobError."""
    try:
        topics.create(name, partitions, CREATED_WITH)
    except JobError as error:
        if error.code != "TOPIC_ALREADY_EXISTS":
            raise


def describe_target(topics: Topics, bootstrap: KafkaServers, name: str) -> ReplayTarget:
    """Look up the topic. Raises JobError with the remedy if the topic is unsuitable."""
    try:
        description = topics.describe(name)
    except JobError as error:
        if error.code != "UNKNOWN_TOPIC_OR_PARTITION":
            raise
        message = f"topic {name!r} does not exist; add --create to create it"
        raise JobError(message, "UNKNOWN_TOPIC") from None
    configs = _configs(bootstrap, name)
    if configs.get("message.timestamp.type", "CreateTime") != "CreateTime":
        raise JobError(
            f"topic {name!r} replaces timestamps with the append time; run"
            f" gateway topic alter {name} -c message.timestamp.type=CreateTime",
            "LOG_APPEND_TIME",
        )
    bounds = topics.bounds([name])
    ends = {partition.partition: found.latest for partition, found in bounds.items()}
    held = sum(found.latest - found.earliest for found in bounds.values())
    return ReplayTarget(name, description.topic_id or "", configs, ends, held)


def check_empty(target: ReplayTarget) -> None:
    """Raise JobError if the target has records, which may be those of an earlier replay."""
    if target.held:
        raise JobError(
            f"topic {target.name!r} holds {target.held} records and no state of this replay was"
            " found; replay into an empty topic, name the state of an earlier run with --state, or"
            " add --append to write after these records",
            "TARGET_NOT_EMPTY",
        )


def check_ends(target: ReplayTarget, expected: Mapping[int, int], append: bool) -> None:
    """Raise JobError unless the target ends where the last plan of the replay ended."""
    for partition, end in sorted(expected.items()):
        now = target.ends.get(partition, 0)
        if now < end:
            raise JobError(
                f"{target.name}-{partition}: ends at {now}, but the replay had written up to {end}:"
                " the target lost records",
                "TARGET_LOST",
            )
        if now > end and not append:
            raise JobError(
                f"{target.name}-{partition}: ends at {now}, but the replay had written up to {end}:"
                " another producer has written since; add --append to continue after its records",
                "FOREIGN_WRITES",
            )


def cluster_id(bootstrap: KafkaServers) -> str:
    """Return the id of the cluster, or "" if it has none. Raises JobError."""

    async def work(client: AdminClient) -> str:
        return (await client.metadata([])).cluster_id or ""

    return run_admin(bootstrap, work)


def check_target(target: ReplayTarget, partitions: int, oldest_age_ms: int) -> None:
    """Raise JobError if the target has too few partitions or would delete the oldest record."""
    name = target.name
    if len(target.ends) < partitions:
        raise JobError(
            f"topic {name!r} has {len(target.ends)} partitions, the source had {partitions};"
            " replay into a topic with as many",
            "TOO_FEW_PARTITIONS",
        )
    retention_ms = int(target.configs.get("retention.ms") or -1)
    if "delete" not in target.configs.get("cleanup.policy", "delete") or retention_ms < 0:
        return
    if oldest_age_ms > retention_ms:
        raise JobError(
            f"topic {name!r} retains records for {retention_ms} ms, and the oldest to replay is"
            f" {oldest_age_ms} ms old, so it would be deleted again; run"
            f" gateway topic alter {name} -c retention.ms=-1",
            "WOULD_EXPIRE",
        )


def _configs(bootstrap: KafkaServers, name: str) -> dict[str, str]:
    """Return the effective values of the settings that matter to a replay."""
    resource = {
        "resource_type": _TOPIC_RESOURCE,
        "resource_name": name,
        "configuration_keys": list(_WANTED),
    }

    async def work(client: AdminClient) -> dict[str, str]:
        answer = await client.send(_DESCRIBE_CONFIGS, {"resources": [resource]})
        (result,) = answer.results
        raise_for(result.error_code, result.error_message, name)
        return {each.name: each.value for each in result.configs if each.value is not None}

    return run_admin(bootstrap, work)


def new_producer_id(bootstrap: KafkaServers) -> ProducerId:
    """Obtain an unused producer id. Raises JobError."""
    fields = {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "transaction_timeout_ms": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }

    async def work(client: AdminClient) -> ProducerId:
        end_s = asyncio.get_running_loop().time() + _RETRY_S_MAX
        while True:
            answer = await client.send(_INIT_PRODUCER_ID, fields)
            late = asyncio.get_running_loop().time() > end_s
            if late or not answer.error_code.retriable:
                break
            await asyncio.sleep(_RETRY_S)  # a server that has just started cannot assign ids yet
        raise_for(answer.error_code, None, "a producer id")
        return ProducerId(answer.producer_id, answer.producer_epoch)

    return run_admin(bootstrap, work)
