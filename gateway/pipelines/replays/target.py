"""The topic that a replay writes to: checks, creation and its end offsets."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gateway.admin.client import AdminClient, raise_for
from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.topics import Topics, run_admin

_DESCRIBE_CONFIGS, _INIT_PRODUCER_ID = 32, 22
_TOPIC_RESOURCE = 2
_RETRY_S, _RETRY_S_MAX = 0.1, 20.0
_WANTED = ("message.timestamp.type", "max.message.bytes", "retention.ms", "cleanup.policy")
CREATED_WITH = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
"""Settings of a created topic. Retention compares timestamps, and replayed records are old."""


class ReplayTarget(NamedTuple):
    """The target topic. `ends` maps each partition to the offset that its next record will get."""

    name: str
    topic_id: str
    configs: dict[str, str]
    ends: dict[int, int]

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


def describe_target(topics: Topics, bootstrap: str, name: str) -> ReplayTarget:
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
    ends = {partition.partition: found.latest for partition, found in topics.bounds([name]).items()}
    return ReplayTarget(name, description.topic_id or "", configs, ends)


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


def _configs(bootstrap: str, name: str) -> dict[str, str]:
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


def new_producer_id(bootstrap: str) -> ProducerId:
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
