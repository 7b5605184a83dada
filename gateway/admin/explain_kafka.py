"""What the brokers report about one partition, for `gateway explain`, in Kafka's protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.admin.client import AdminClient, AdminError, Unreachable, raise_for
from gateway.admin.metadata_address import metadata_address
from gateway.admin.topics import EARLIEST, LATEST, LOOK_RETRY_S_MAX, offsets, settings
from gateway.wire.client_link import NOT_A_GATEWAY
from gateway.wire.fetch_request import fetch_fields

_FETCH, _METADATA, _DESCRIBE_PRODUCERS = 1, 3, 61
_FETCH_VERSION_MAX = 12  # later ones have ids in place of names


Row = dict[str, Any]


class NoMetadata(Exception):
    """The error that a gateway reports no metadata that this machine can read."""


class PartitionView(NamedTuple):
    """One partition as its leader reports it. Numbers are None if no leader answered."""

    topic: str
    partition: int
    leader: int | None  # a node id
    address: str | None  # host:port of the leader
    epoch: int | None
    start: int | None
    end: int | None
    stable: int | None  # the last stable offset
    settings: Mapping[str, str | None]
    offset: int  # the one that is explained
    # Producer ids and first offsets of the aborted transactions around `offset`. None if it is
    # not below the last stable offset, or no leader answered.
    aborted: tuple[tuple[int, int], ...] | None
    opened: Mapping[int, int] | None  # producer ids and first offsets of open transactions


async def ledger_address(client: AdminClient) -> str:
    """Return where the metadata are.

    Raises NoMetadata if the gateway reports none that can be read from here, AdminError if the
    server is no gateway.
    """
    try:
        return await metadata_address(client)
    except AdminError as error:
        if not await client.reaches_gateway():
            raise not_a_gateway(client) from None
        raise NoMetadata(str(error)) from error


def not_a_gateway(client: AdminClient) -> AdminError:
    """Return the error for a server that has no ledgers."""
    servers = ",".join(client.bootstrap_hosts)
    return AdminError(
        f"the server at {servers} is not a ledger gateway, so there is no ledger to explain; "
        "`gateway topic consume` reads its records",
        NOT_A_GATEWAY,
    )


async def view_partition(
    client: AdminClient, topic: str, partition: int, offset: int | None, at_ms: int | None
) -> PartitionView:
    """Ask for everything about one offset; without one, of the first record since `at_ms`.

    Raises AdminError if the partition does not exist, or no record is as new as `at_ms`.
    """
    place = {topic: [partition]}
    leader, address, epoch = await _leader(client, topic, partition)
    start = await _one(client, place, EARLIEST)
    end = await _one(client, place, LATEST) if start is not None else None
    stable = await _one(client, place, LATEST, committed=True) if end is not None else None
    if offset is None:
        assert at_ms is not None
        offset = await _offset_at(client, place, at_ms, end)
    opened = await _opened(client, topic, partition) if end is not None else None
    aborted = None
    if start is not None and stable is not None and start <= offset < stable:
        aborted = await _aborted(client, topic, partition, offset)
    return PartitionView(
        topic=topic,
        partition=partition,
        leader=leader,
        address=address,
        epoch=epoch,
        start=start,
        end=end,
        stable=stable,
        settings=await settings(client, topic),
        offset=offset,
        aborted=aborted,
        opened=opened,
    )


async def _leader(
    client: AdminClient, topic: str, partition: int
) -> tuple[int | None, str | None, int | None]:
    answer = await client.metadata([topic])
    (found,) = answer.topics
    if found.error_code.name == "unknown_topic_or_partition":
        raise AdminError(f"Topic '{topic}' does not exist.", "UNKNOWN_TOPIC_OR_PARTITION")
    raise_for(found.error_code, None, topic)
    for each in found.partitions:
        if each.partition_index == partition:
            break
    else:
        raise AdminError(
            f"Topic '{topic}' has no partition {partition}: it has {len(found.partitions)}.",
            "UNKNOWN_TOPIC_OR_PARTITION",
        )
    epoch = getattr(each, "leader_epoch", None)
    for broker in answer.brokers:
        if broker.node_id == each.leader_id:
            return broker.node_id, f"{broker.host}:{broker.port}", epoch
    return None, None, epoch


async def _one(
    client: AdminClient,
    place: Mapping[str, Sequence[int]],
    timestamp: int,
    *,
    committed: bool = False,
) -> int | None:
    found = await offsets(
        client, place, timestamp, committed=committed, retry_s_max=LOOK_RETRY_S_MAX
    )
    return next(iter(found.values()), None)


async def _offset_at(
    client: AdminClient, place: Mapping[str, Sequence[int]], at_ms: int, end: int | None
) -> int:
    found = await _one(client, place, at_ms)
    if found is None:
        raise AdminError("no leader answers, so --at finds no offset", "LEADER_NOT_AVAILABLE")
    if found < 0:
        raise AdminError(f"no record is as new as --at: it ends at {end}", "NOT_WRITTEN_YET")
    return found


async def _aborted(
    client: AdminClient, topic: str, partition: int, offset: int
) -> tuple[tuple[int, int], ...] | None:
    """Return the aborted transactions that the leader lists with the batch of `offset`."""
    fields = fetch_fields(
        [(topic, partition, offset)],
        partition_bytes_max=1,
        bytes_max=1,
        bytes_min=0,
        wait_ms=0,
        committed=True,
    )
    try:
        answer = await client.at_leader(
            (topic, partition), _FETCH, lambda _: fields, _fetch_codes, _FETCH_VERSION_MAX
        )
    except (AdminError, Unreachable):
        return None
    (found,) = answer.responses[0].partitions
    if found.error_code.value or not found.records:
        return None
    return tuple((each.producer_id, each.first_offset) for each in found.aborted_transactions or ())


def _fetch_codes(answer: Any) -> list[Any]:
    return [each.error_code for topic in answer.responses for each in topic.partitions]


async def _opened(client: AdminClient, topic: str, partition: int) -> Mapping[int, int] | None:
    """Return the open transactions of the partition, None if its leader does not tell."""

    def fields(topics: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        named = [{"name": name, "partition_indexes": each} for name, each in topics.items()]
        return {"topics": named}

    place = topic, partition
    found = await client.at_leaders([place], _DESCRIBE_PRODUCERS, fields, LOOK_RETRY_S_MAX)
    if place not in found:
        return None
    return {
        each.producer_id: each.current_txn_start_offset
        for each in found[place].active_producers
        if each.current_txn_start_offset >= 0
    }


async def with_times(client: AdminClient, found: Row) -> Row:
    """Add to an explanation when the bookies acknowledged its entry, if a gateway remembers it.

    The gateway that wrote it need not be the leader by now, so all of them are asked. One that does
    not answer, or is of an earlier release, remembers nothing.
    """
    entry = {key: found["ledger"][key] for key in ("ledger", "entry")}
    try:
        answers = await client.ask_gateways(lambda _: {"ask": "acknowledgements", **entry})
    except (AdminError, Unreachable):
        return found
    times = [
        answer["acknowledgements"]
        for answer in answers.values()
        if isinstance(answer, dict) and answer.get("acknowledgements") is not None
    ]
    if not times:
        return found
    return {**found, "acknowledged": {**found["acknowledged"], "times": times[0]}}
