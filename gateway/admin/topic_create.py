"""Creates several topics in one request, and adds partitions to a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.admin.client import AdminClient, AdminError, raise_for
from gateway.admin.topics import Row, add_partitions, create_topics, created_row
from ledger.command_line import units

_EXISTS = "topic_already_exists"
CREATED, EXISTED, FAILED = "created", "exists", "failed"
"""The outcomes of a creation."""


class Creation(NamedTuple):
    """The outcome of a request to create topics."""

    rows: list[Row]  # one for each topic, in the order of the names
    failures: list[AdminError]  # of the rows whose outcome is FAILED
    remarks: list[str]  # what the server said about topics that it created


async def create(
    client: AdminClient,
    names: Sequence[str],
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    *,
    if_not_exists: bool,
) -> Creation:
    """Create the topics, each independent of the others. A count of -1 is the server's default.

    With `if_not_exists`, a topic that exists is no failure: its row describes it as it is.
    """
    answers = await create_topics(client, names, partitions, replication_factor, configs)
    existing = [
        name for name in names if if_not_exists and answers[name].error_code.name == _EXISTS
    ]
    known = await _existing(client, existing) if existing else {}
    done = Creation([], [], [])
    for name in names:
        made = answers[name]
        if name in known:
            done.rows.append(_row(known[name], EXISTED))
        elif not made.error_code.value:
            done.rows.append(_row(created_row(name, made), CREATED))
            if made.error_message:
                one = len(names) == 1
                done.remarks.append(made.error_message if one else f"{name}: {made.error_message}")
        else:
            failure = _failure(made, name)
            done.failures.append(failure)
            done.rows.append(_row(created_row(name, made), FAILED, failure))
    return done


def _failure(made: Any, name: str) -> AdminError:
    try:
        raise_for(made.error_code, made.error_message, name)
    except AdminError as error:
        return error
    raise AssertionError("an answer without an error is no failure")


def _row(topic: Row, outcome: str, failure: AdminError | None = None) -> Row:
    return {
        **topic,
        "outcome": outcome,
        "error": None if failure is None else failure.code,
        "message": None if failure is None else str(failure),
    }


async def _existing(client: AdminClient, names: Sequence[str]) -> dict[str, Row]:
    """Return the topics as they are. One that was deleted meanwhile is left out."""
    answer = await client.metadata(names)
    # The replicas of a gateway are the brokers that could lead, not the copies.
    counts_copies = not await client.reaches_gateway()
    found: dict[str, Row] = {}
    for topic in answer.topics:
        if topic.error_code.value:
            continue
        topic_id = getattr(topic, "topic_id", None)
        copies = [len(each.replica_nodes) for each in topic.partitions if counts_copies]
        found[topic.name] = {
            "name": topic.name,
            "topic_id": None if topic_id is None else str(topic_id),
            "partitions": len(topic.partitions),
            "replication_factor": max(copies, default=-1),
        }
    return found


async def grow(client: AdminClient, name: str, more: int) -> Row:
    """Add `more` partitions to the topic. Returns how many it had and has.

    Raises AdminError without a change if another client added partitions meanwhile.
    """
    answer = await client.metadata([name])
    (topic,) = answer.topics
    if topic.error_code.name == "unknown_topic_or_partition":
        raise AdminError(f"Topic '{name}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
    raise_for(topic.error_code, None, name)
    before = len(topic.partitions)
    if before + more > units.INT32_MAX:
        raise AdminError(
            f"topic {name} has {before} partitions and cannot have {more} more",
            "INVALID_PARTITIONS",
        )
    await add_partitions(client, name, before + more)
    return {"name": name, "added": more, "partitions": before + more}
