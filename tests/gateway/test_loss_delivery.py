"""Goal: a consumer passes an accepted loss in the way that its topic sets. Before, it is stopped,
and what it waits for is shown.

Method: Fetch, ListOffsets and configs in Kafka's own bytes on virtual time, over real streams whose
bookie lost entries. Source: seed 002 L16, for Kafka's side of a gap.
"""

import asyncio
import json
import struct

import pytest
from aiokafka.record.memory_records import MemoryRecords
from kio.schema.errors import ErrorCode

from gateway.admin.blocked import blocked_from
from gateway.core.blocked_reads import AT_END, EXPIRY_S, STALLED_S
from gateway.handlers.k32_describe_configs import ResourceType
from gateway.metrics.samples import Samples
from gateway.topics.broker_configs import BLOCKED_PARTITIONS
from gateway.topics.config_changes import ConfigOperation
from gateway.topics.loss_delivery import describe
from ledger.core.accepted_losses import LostRange
from ledger.core.gaps import ENTRY_MAX, Acceptance, OffsetRange
from ledger.ids import EntryId, LedgerId
from ledger.ports.bookies import Status
from tests.batches import plain_batch
from tests.gateway.lossy_cluster import (
    ACCEPTED_AT,
    ACCEPTED_MS,
    evidence_of,
    headers,
    lossy_cluster,
    lost_range,
    reserved_range,
)
from tests.gateway.stream_cluster import LIST_OFFSETS, times_of
from tests.gateway.test_fetch import one

OK, STORAGE = ErrorCode.none, ErrorCode.kafka_storage_error
DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 44
LOSS_WARNING = "records are lost"


async def filled(cluster, batches=5, **configs):
    """Return the partition of a new topic with batches of two records, each an entry."""
    partition = await cluster.topic(**configs)
    for number in range(batches):
        await cluster.sent(partition, plain_batch([1000 + number, 1000 + number]))
    return partition


async def read(cluster, offset, **fields):
    """Fetch one partition and return its error and its batches."""
    found, _ = await one(cluster, offset, wait_ms=0, **fields)
    return found.error_code, headers(bytes(found.records or b""))


async def read_on(cluster, offset, end):
    """Read as a consumer does, and return all batches up to `end`."""
    found = []
    while offset < end:
        error, batches = await read(cluster, offset)
        assert error is OK and batches, (offset, error)
        found += batches
        offset = batches[-1].last + 1
    assert offset == end
    return found


async def alter(cluster, value, operation=ConfigOperation.SET):
    config = {"name": "gateway.loss.delivery", "config_operation": operation, "value": value}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
    answer = await cluster.answer(
        INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
    )
    (result,) = answer.responses
    return result.error_code, result.error_message


# -- skip -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 19))
async def test_a_batch_without_records_covers_a_loss_in_the_middle(version):
    async with lossy_cluster() as cluster:
        partition = await cluster.accept(await filled(cluster), 2, 5)
        assert partition.high_watermark == 10
        assert await read(cluster, 0, version=version) == (
            OK,
            [(0, 1, 2), (2, 5, 0), (6, 7, 2), (8, 9, 2)],
        )


@pytest.mark.parametrize("offset", [2, 3, 4, 5])
async def test_a_read_from_inside_a_loss_gets_the_same_batch(offset):
    async with lossy_cluster() as cluster:
        await cluster.accept(await filled(cluster), 2, 5)
        _, batches = await read(cluster, offset)
        assert batches == [(2, 5, 0), (6, 7, 2), (8, 9, 2)]


@pytest.mark.parametrize("offset", [6, 7, 8, 9])
async def test_a_loss_at_the_very_end_moves_a_consumer_to_the_end(offset):
    async with lossy_cluster() as cluster:
        partition = await cluster.accept(await filled(cluster), 6, 9)
        assert partition.high_watermark == 10
        assert await read(cluster, offset) == (OK, [(6, 9, 0)])
        assert await read(cluster, 10) == (OK, [])


async def test_a_partition_that_lost_all_its_records_is_passed():
    async with lossy_cluster() as cluster:
        await cluster.accept(await filled(cluster), 0, 9)
        assert await read(cluster, 0) == (OK, [(0, 9, 0)])


async def test_a_batch_without_records_is_data_for_min_bytes():
    async with lossy_cluster() as cluster:
        await cluster.accept(await filled(cluster), 6, 9)
        found, took_s = await one(cluster, 6, wait_ms=500, min_bytes=61)
        assert (took_s, len(found.records)) == (0, 61)
        found, took_s = await one(cluster, 6, wait_ms=500, min_bytes=62)
        assert (took_s, len(found.records)) == (0.5, 61)


async def test_a_batch_carries_the_leader_epoch_of_its_segment():
    async with lossy_cluster() as cluster:
        partition = await filled(cluster, 2)
        partition = await cluster.reopened(partition)
        for _ in range(3):
            await cluster.sent(partition, plain_batch([2000, 2000]))
        partition = await cluster.accept(partition, 6, 7)
        found, _ = await one(cluster, 6, wait_ms=0)
        (epoch,) = struct.unpack_from(">i", bytes(found.records), 12)
        assert epoch == partition.epoch_at(6) == partition.epoch_at(4) > partition.epoch_at(0)


@pytest.mark.parametrize("count", [2**31 - 1, 2**31, 3 << 30])
async def test_a_range_longer_than_a_batch_takes_several(count):
    async with lossy_cluster() as cluster:
        partition = await cluster.reopened(await filled(cluster))
        await cluster.store(partition, reserved_range(partition.stream.segments[-1], 10, count))
        partition = await cluster.reopened(partition)
        assert partition.high_watermark == 10 + count
        found = await read_on(cluster, 0, 10 + count)
        assert found[5:] == [
            (at, min(at + 2**31, 10 + count) - 1, 0) for at in range(10, 10 + count, 2**31)
        ]
        await cluster.sent(partition, plain_batch([5000]))
        assert (await read(cluster, 10 + count))[1] == [(10 + count, 10 + count, 1)]
        assert (await read(cluster, 9 + count))[1][-1] == (10 + count, 10 + count, 1)


async def test_a_hostile_range_takes_little_memory():
    async with lossy_cluster() as cluster:
        partition = await cluster.reopened(await filled(cluster))
        await cluster.store(partition, reserved_range(partition.stream.segments[-1], 10, 2**62))
        partition = await cluster.reopened(partition)
        await cluster.sent(partition, plain_batch([5000]))
        await cluster.reopened(partition)
        error, batches = await read(cluster, 10)
        assert error is OK and len(batches) == 16
        position = batches[-1].last + 1
        assert (await read(cluster, position))[1][0].first == position


# -- marker ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 2, 3, 5])
async def test_a_marker_is_one_record_at_the_last_lost_offset(offset):
    async with lossy_cluster() as cluster:
        partition = await filled(cluster, gateway_loss_delivery="marker")
        partition = await cluster.reopened(partition)
        entries = await cluster.entries(partition)
        await cluster.accept(partition, 2, 5)
        found, _ = await one(cluster, offset, wait_ms=0)
        batches = headers(bytes(found.records))
        assert batches[batches.index((5, 5, 1)) :] == [(5, 5, 1), (6, 7, 2), (8, 9, 2)]
        (marker,) = [record for record in decoded(found) if record.headers]
        assert (marker.offset, marker.key, marker.value, marker.timestamp) == (5, None, None, 0)
        ((name, value),) = marker.headers
        assert name == "gateway.loss"
        assert json.loads(value) == {
            "type": "DATALOSS",
            "first": 2,
            "last": 5,
            "ledger": entries[1].ledger,
            "entries": [entries[1].entry, entries[2].entry],
            "accepted_at": ACCEPTED_AT,
        }


def decoded(fetched):
    records, found = MemoryRecords(bytes(fetched.records)), []
    while (batch := records.next_batch()) is not None:
        found += list(batch)
    return found


async def test_a_lookup_by_timestamp_never_returns_a_marker():
    async with lossy_cluster() as cluster:
        partition = await filled(cluster, gateway_loss_delivery="marker")
        await cluster.accept(partition, 2, 5)
        due = {0: (1000, 0), 1001: (1003, 6), 1003: (1003, 6), 1005: (-1, -1), -3: (1004, 8)}
        for asked, answer in due.items():
            reply = await cluster.answer(LIST_OFFSETS, 8, **times_of({"t": [(0, asked)]}))
            (found,) = reply.topics[0].partitions
            assert (found.error_code, (found.timestamp, found.offset)) == (OK, answer), asked


@pytest.mark.parametrize("first", [2, 4, 8])
@pytest.mark.parametrize("how", ["accepted", "met", "there when the log was opened"])
async def test_the_greatest_timestamp_is_found_across_a_loss(how, first):
    """Its batch is below the log start, so that every batch is looked at."""
    async with lossy_cluster() as cluster:
        partition = await cluster.topic()
        for timestamps in ([1, 9000], [5, 4], [3, 3], [2, 7], [6, 6]):
            await cluster.sent(partition, plain_batch(timestamps))
        await partition.truncate(2)
        if how == "accepted":
            partition = await cluster.accept(partition, first, first + 1)
        else:
            partition, _ = await cluster.lose(partition, first, first + 1)
            if how != "met":
                partition = await cluster.reopened(partition)
        assert await cluster.at_time(partition, None) == (7, 7)


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (ACCEPTED_MS, ACCEPTED_AT),
        (-(2**80), "1970-01-01T00:00:00.000Z"),
        (2**80, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_any_time_of_an_acceptance_can_be_described(at_ms, text):
    evidence = evidence_of(LedgerId(7))._replace(acceptance=Acceptance(at_ms, "operator"))
    lost = LostRange(1, EntryId(3), ENTRY_MAX, OffsetRange(5, 9, exact=False), evidence)
    assert json.loads(describe(lost)) == {
        "type": "DATALOSS",
        "first": 5,
        "last": 9,
        "ledger": 7,
        "entries": [3, 2**63 - 1],
        "accepted_at": text,
    }


# -- stop -----------------------------------------------------------------------------------------


async def test_stop_refuses_to_read_on_at_the_loss_only():
    async with lossy_cluster() as cluster:
        await cluster.accept(await filled(cluster, gateway_loss_delivery="stop"), 2, 5)
        assert await read(cluster, 0) == (OK, [(0, 1, 2)])
        for offset in (2, 3, 5):
            assert await read(cluster, offset) == (STORAGE, [])
        assert (await read(cluster, 6))[1] == [(6, 7, 2), (8, 9, 2)]


async def test_the_setting_is_live(capsys):
    async with lossy_cluster() as cluster:
        partition = await cluster.accept(await filled(cluster), 2, 5)
        assert (await read(cluster, 2))[1][0] == (2, 5, 0)
        assert await alter(cluster, "marker") == (OK, None)
        assert (await read(cluster, 2))[1][0] == (5, 5, 1)
        assert await alter(cluster, "stop") == (OK, None)
        assert await read(cluster, 2) == (STORAGE, [])
        (place,) = partition.losses.places(0)
        assert place.text == "blocked at offset 2: lost (gateway.loss.delivery=stop)"
        assert await alter(cluster, None, ConfigOperation.DELETE) == (OK, None)
        assert (await read(cluster, 2))[1][0] == (2, 5, 0)
        assert not partition.losses.places(0)
    assert LOSS_WARNING not in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "SKIP", "none", "skip,marker"])
async def test_another_value_is_refused_with_the_allowed_ones(value):
    async with lossy_cluster() as cluster:
        await cluster.topic()
        error, message = await alter(cluster, value)
        assert error is ErrorCode.invalid_config
        assert message == (
            f"Invalid value {value} for configuration gateway.loss.delivery: "
            "String must be one of: skip, marker, stop"
        )


async def test_the_setting_is_described_with_its_default():
    async with lossy_cluster() as cluster:
        await cluster.topic()
        asked = {
            "resource_type": ResourceType.TOPIC,
            "resource_name": "t",
            "configuration_keys": ["gateway.loss.delivery"],
        }
        answer = await cluster.answer(
            DESCRIBE_CONFIGS,
            4,
            resources=[asked],
            include_synonyms=True,
            include_documentation=True,
        )
        ((config,),) = [result.configs for result in answer.results]
        assert (config.value, config.config_source, config.config_type) == ("skip", 5, 2)
        assert all(word in config.documentation for word in ("skip", "marker", "stop"))


# -- not accepted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("opened_after", [False, True])
async def test_a_loss_that_is_not_accepted_stops_its_readers_and_no_others(opened_after):
    async with lossy_cluster() as cluster:
        partition, _ = await cluster.lose(await filled(cluster), 2, 5)
        if opened_after:
            partition = await cluster.reopened(partition)
        assert await read(cluster, 0) == (OK, [(0, 1, 2)])
        assert await read(cluster, 2) == (STORAGE, [])
        assert await read(cluster, 6) == (OK, [(6, 7, 2), (8, 9, 2)])
        (place,) = partition.losses.places(0)
        assert place.text == "blocked at offset 2: lost"
        await turns()
        (place,) = partition.losses.places(0)
        assert place.lost_offsets == 4


async def test_a_loss_is_logged_once_for_each_partition(capsys):
    async with lossy_cluster() as cluster:
        await cluster.lose(await filled(cluster), 2, 5)
        for _ in range(100):
            assert await read(cluster, 2) == (STORAGE, [])
            await asyncio.sleep(5)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if LOSS_WARNING in line]
        assert "topic=t partition=0 offset=2 " in line


async def test_an_acceptance_lets_blocked_readers_pass():
    async with lossy_cluster() as cluster:
        partition, lost = await cluster.lose(await filled(cluster), 2, 5)
        assert await read(cluster, 2) == (STORAGE, [])
        await cluster.store(partition, lost_range(lost, 2, 5))
        await turns()
        assert await read(cluster, 2) == (OK, [(2, 5, 0), (6, 7, 2), (8, 9, 2)])
        assert not partition.losses.places(0)


async def test_a_reader_of_an_entry_that_may_return_is_shown_with_the_bookies():
    async with lossy_cluster() as cluster:
        partition, _ = await cluster.lose(await filled(cluster), 2, 5, Status.UNREACHABLE)
        assert await read(cluster, 2) == (STORAGE, [])
        (place,) = partition.losses.places(0)
        assert place.text == f"blocked at offset 2: waiting for {cluster.port.name}"
        cluster.port.missing.clear()
        async with asyncio.timeout(1):  # the read is repeated beside the fetches
            while (found := await read(cluster, 2)) == (STORAGE, []):
                await asyncio.sleep(0.1)
        assert found[1][0] == (2, 3, 2)
        assert not partition.losses.places(0)


async def test_a_partition_whose_end_cannot_be_read_is_blocked_there():
    async with lossy_cluster() as cluster:
        partition = await filled(cluster)
        await cluster.crash()
        [segment] = partition.stream.segments
        reader = await cluster.services.client.recover(segment.ledger)  # and then crash again
        last = segment.ledger, reader.last_add_confirmed
        cluster.port.missing[last] = Status.UNREACHABLE
        partition = cluster.partitions.find("t", 0)
        await asyncio.sleep(STALLED_S + 20)
        assert not partition.readable
        (place,) = partition.losses.places(partition.log_start_offset)
        assert place.text == f"blocked at its end: waiting for {cluster.port.name}"
        assert partition.losses.readers_blocked(STALLED_S) == 1
        cluster.port.missing.clear()
        await partition.ensure_readable()
        assert not partition.losses.places(0)


# -- what operators see ---------------------------------------------------------------------------


async def samples(cluster):
    """Return the families of the metrics page that concern losses, by name."""
    gathered = Samples(cluster.context)
    await gathered._topics()
    await gathered._blocked()
    return {
        family.name: dict(family.samples)
        for family in gathered._families.values()
        if family.name.startswith("gateway_")
    }


async def test_the_metrics_count_losses_blocked_partitions_and_their_readers():
    async with lossy_cluster() as cluster:
        partition = await cluster.accept(await filled(cluster), 2, 5)
        await cluster.lose(partition, 8, 9)
        began_s = asyncio.get_running_loop().time()
        seen = []
        while asyncio.get_running_loop().time() < began_s + 125:
            assert await read(cluster, 8) == (STORAGE, [])
            found = await samples(cluster)
            seen.append((found["gateway_readers_stalled"][()], found["gateway_readers_stuck"][()]))
            await asyncio.sleep(2)
        assert sorted(set(seen)) == [(0, 0), (1, 0), (1, 1)]
        assert found["gateway_topic_partition_lost_records"] == {
            ("t", "0", "true"): 4,
            ("t", "0", "false"): 2,
        }
        assert found["gateway_topic_partition_blocked"] == {
            ("t", "0", "blocked at offset 8: lost"): 1
        }
        assert found["gateway_blocked_partitions"] == {(): 1}
        await asyncio.sleep(EXPIRY_S + 1)
        found = await samples(cluster)
        assert found["gateway_blocked_partitions"] == {(): 0}


async def test_admin_commands_ask_where_readers_are_blocked():
    async with lossy_cluster() as cluster:
        await cluster.lose(await filled(cluster), 2, 5)
        assert await read(cluster, 2) == (STORAGE, [])
        asked = {
            "resource_type": ResourceType.BROKER,
            "resource_name": "0",
            "configuration_keys": [BLOCKED_PARTITIONS],
        }
        answer = await cluster.answer(
            DESCRIBE_CONFIGS,
            4,
            resources=[asked],
            include_synonyms=False,
            include_documentation=False,
        )
        ((config,),) = [result.configs for result in answer.results]
        assert config.read_only
        assert json.loads(config.value) == [
            {"topic": "t", "partition": 0, "offset": 2, "reason": "blocked at offset 2: lost"}
        ]


def test_a_group_is_blocked_by_what_is_ahead_of_it():
    blocked = {("t", 0): {5: "five", 9: "nine"}}
    assert blocked_from(blocked, ("t", 0), 0) == "five"
    assert blocked_from(blocked, ("t", 0), 5) == "five"
    assert blocked_from(blocked, ("t", 0), 6) == "nine"
    assert blocked_from(blocked, ("t", 0), 10) is None
    assert blocked_from(blocked, ("t", 0), None) == "five"
    assert blocked_from(blocked, ("t", 1), 0) is None
    assert blocked_from({("t", 0): {AT_END: "end", 9: "nine"}}, ("t", 0), 50) == "end"


# -- truncation -----------------------------------------------------------------------------------


async def test_below_a_start_inside_a_loss_the_error_has_the_right_earliest_offset():
    async with lossy_cluster() as cluster:
        partition = await cluster.accept(await filled(cluster), 2, 5)
        await partition.truncate(4)
        found, _ = await one(cluster, 3, wait_ms=0)
        assert found.error_code is ErrorCode.offset_out_of_range
        assert (found.log_start_offset, found.high_watermark) == (-1, -1)
        reply = await cluster.answer(LIST_OFFSETS, 8, **times_of({"t": [(0, -2)]}))
        assert reply.topics[0].partitions[0].offset == 4
        assert (await read(cluster, 4))[1] == [(2, 5, 0), (6, 7, 2), (8, 9, 2)]
        assert partition.accepted_lost_records == 2


async def turns(count=50):
    for _ in range(count):
        await asyncio.sleep(0.001)
