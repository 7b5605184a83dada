"""Goal: every field of `gateway explain` is what the files hold, whatever happened to them.

Method: a broker over three or four real bookies on virtual time, and the command's own requests. An
independent walk over the log files finds each field again, before and after a roll, an ensemble
change, a repair, the rewriting of log files, compaction, merging and truncation. Planted mistakes
must be found by it.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.admin import explain as explain_module
from gateway.admin.client import AdminError
from gateway.admin.explain import explain, held
from gateway.admin.explain_batch import StoredBatch
from gateway.admin.explain_kafka import PartitionView
from gateway.admin.topics import truncate_topic
from ledger.bookie.log_file_cache import LogFileCache
from ledger.ports.bookies import ReadManyReply, Status
from ledger.repair.replication_worker import RepairStatus
from tests.gateway.explain_rig import explained, settled
from tests.gateway.explain_walk import check_explanation
from tests.gateway.stream_cluster import batch
from tests.gateway.test_transaction_path import marked, part, sent
from tests.losses.rig import TOPIC, loss_rig

DAY_MS = 86_400_000
KEPT = {"segment_bytes": 1 << 20}


async def filled(cluster, segments=1, **configs):
    """A partition with five batches in each segment: 2 records, of an idempotent producer."""
    partition = await cluster.topic(**{**KEPT, **configs})
    for segment in range(segments):
        if segment:
            await cluster.roll(partition)
        for number in range(5):
            each = batch(10 * segment + 2 * number, producer=7, at=cluster.clock.now_ms())
            (produced,) = await cluster.sent(partition, each)
            assert not produced.error
    await settled()
    return partition


async def refused(cluster, offset, **changes):
    with pytest.raises(AdminError) as raised:
        await cluster.explain(offset, **changes)
    return raised.value.code, str(raised.value)


async def test_every_record_of_every_segment_is_as_the_files_have_it():
    async with explained() as cluster:
        await filled(cluster, 3)
        for offset in range(30):
            found = await cluster.checked(offset)
            assert [row["has"] for row in found["copies"]] == ["yes"] * 3
            assert found["segment"]["number"] == offset // 10 + 1
            assert found["segment"]["dlsn"]["segment"] == offset // 10 + 1
            assert found["batch"]["sequence"] == found["batch"]["base_sequence"] + offset % 2
            assert found["acknowledged"]["at_least"] == 2


async def test_a_roll_closes_the_segment_and_its_ledger():
    async with explained() as cluster:
        partition = await filled(cluster)
        before = await cluster.checked(9)
        assert (before["segment"]["state"], before["ledger"]["state"]) == ("in progress", "OPEN")
        assert before["segment"]["end_offset"] is None
        assert before["acknowledged"]["proof"] == "high watermark > offset"
        await cluster.roll(partition)
        await settled()
        after = await cluster.checked(9)
        assert (after["segment"]["state"], after["ledger"]["state"]) == ("completed", "CLOSED")
        assert after["segment"]["end_offset"] == 10
        assert after["acknowledged"]["proof"] == "LAC >= entry"
        assert after["copies"] == before["copies"]


async def test_the_leader_and_both_epochs_are_named():
    async with explained() as cluster:
        await filled(cluster)
        await cluster.restart()
        partition = await cluster.partition()
        await cluster.sent(partition, batch(10, producer=7, at=cluster.clock.now_ms()))
        old, new = await cluster.checked(0), await cluster.checked(10)
        assert old["leader"] == new["leader"]
        assert new["leader"]["node"] == cluster.config.node_id
        assert old["batch"]["leader_epoch"] < new["batch"]["leader_epoch"]
        assert new["batch"]["leader_epoch"] == new["leader"]["epoch"]


async def test_a_bookie_that_is_away_is_a_row():
    async with explained() as cluster:
        await filled(cluster)
        name = (await cluster.explain(0))["copies"][0]["bookie"]
        cluster.port.leave(name)
        rows = {row["bookie"]: row for row in (await cluster.checked(0))["copies"]}
        assert (rows[name]["status"], rows[name]["has"], rows[name]["file"]) == (
            "away",
            "unknown",
            None,
        )
        assert sorted(row["has"] for row in rows.values()) == ["unknown", "yes", "yes"]


async def test_after_an_ensemble_change_each_entry_names_its_own_bookies():
    async with explained(4) as cluster:
        partition = await filled(cluster)
        before = [row["bookie"] for row in (await cluster.explain(0))["copies"]]
        cluster.port.leave(before[0])
        await cluster.sent(partition, batch(10, producer=7, at=cluster.clock.now_ms()))
        await settled()
        assert [row["bookie"] for row in (await cluster.checked(0))["copies"]] == before
        after = await cluster.checked(10)
        assert {row["bookie"] for row in after["copies"]} == set(cluster.files()) - {before[0]}
        assert [row["has"] for row in after["copies"]] == ["yes"] * 3


async def test_a_repaired_entry_is_at_its_new_bookie():
    async with explained(4) as cluster:
        partition = await filled(cluster)
        await cluster.roll(partition)
        before = await cluster.checked(0)
        gone = before["copies"][0]["bookie"]
        cluster.port.leave(gone)
        outcome = await cluster.repair(before["ledger"]["ledger"], gone)
        assert outcome.result is RepairStatus.REPAIRED
        for offset in range(10):
            found = await cluster.checked(offset)
            assert {row["bookie"] for row in found["copies"]} == set(cluster.files()) - {gone}
            assert [row["has"] for row in found["copies"]] == ["yes"] * 3


async def test_rewritten_log_files_give_each_copy_a_new_place():
    async with explained() as cluster:
        await filled(cluster, 2)
        before = {offset: await cluster.checked(offset) for offset in range(20)}
        assert await cluster.rewrite_files() >= 3
        for offset, old in before.items():
            new = await cluster.checked(offset)
            for was, now in zip(old["copies"], new["copies"], strict=True):
                assert now["file"] > was["file"]


async def test_a_damaged_copy_is_no_copy_and_has_its_place():
    async with explained() as cluster:
        await filled(cluster)
        found = await cluster.checked(4)
        name = found["copies"][1]["bookie"]
        cluster.spoil(name, found["ledger"]["ledger"], found["ledger"]["entry"])
        damaged = await cluster.explain(4)  # the walk passes over a group with a wrong checksum
        assert [row["has"] for row in damaged["copies"]] == ["yes", "damaged", "yes"]
        places = [(row["file"], row["position"], row["length"]) for row in found["copies"]]
        assert places == [(r["file"], r["position"], r["length"]) for r in damaged["copies"]]


async def test_a_batch_with_a_wrong_checksum_is_shown_without_its_record(monkeypatch):
    async with explained() as cluster:
        await filled(cluster)
        good = await cluster.explain(3)
        monkeypatch.setattr(StoredBatch, "sound", False)
        found = await cluster.explain(3)
        assert found.keys() == good.keys()
        assert found["record"].keys() == good["record"].keys()
        assert (found["batch"]["crc"], found["record"]["timestamp"]) == ("wrong", None)


async def test_a_bookie_of_an_earlier_release_shows_no_place():
    async with explained() as cluster:
        await filled(cluster)
        name = (await cluster.explain(0))["copies"][2]["bookie"]
        cluster.port.earlier.add(name)
        row = (await cluster.explain(0))["copies"][2]
        assert (row["has"], row["file"], row["located"]) == ("yes", None, "BAD_VERSION")


async def test_without_a_leader_the_files_answer():
    async with explained() as cluster:
        partition = await filled(cluster)
        await cluster.roll(partition)
        nothing = {"leader": None, "address": None, "epoch": None, "start": None, "end": None}
        nothing |= {"stable": None, "aborted": None, "opened": None}
        found = await cluster.checked(3, **nothing)
        assert found["leader"] == {"node": None, "address": None, "epoch": None}
        assert await refused(cluster, 10, **nothing) == (
            "NOT_WRITTEN_YET",
            "not written yet: ends at 10",
        )


# -- offsets without a record ----------------------------------------------------------------------


async def test_behind_the_end_nothing_is_written_yet():
    async with explained() as cluster:
        await filled(cluster)
        for offset in (10, 11, 2**62):
            assert await refused(cluster, offset) == (
                "NOT_WRITTEN_YET",
                "not written yet: ends at 10",
            )


async def test_a_truncated_offset_was_deleted_by_truncation():
    async with explained() as cluster:
        await filled(cluster, 2)
        await truncate_topic(cluster.client, "t", [0], 13)
        deleted = "deleted by truncation; the first is 13"
        assert await refused(cluster, 12) == ("OFFSET_DELETED", f"offset 12 was {deleted}")
        assert await refused(cluster, 5) == ("OFFSET_DELETED", f"offset 5 was {deleted}")
        left = await cluster.checked(13)
        assert left["segment"]["state"] == "in progress"


async def test_a_closed_segment_that_was_truncated_inside_says_so():
    async with explained() as cluster:
        await filled(cluster, 2)
        await truncate_topic(cluster.client, "t", [0], 4)
        found = await cluster.checked(4)
        assert found["segment"]["state"] == "partially truncated"


async def test_what_retention_removed_was_deleted_by_its_only_limit():
    async with explained() as cluster:
        partition = await filled(cluster, 3, retention_ms=DAY_MS)
        await asyncio.sleep(2 * DAY_MS / 1000)
        await partition.expire()
        assert partition.log_start_offset == 10  # the newest closed segment stays
        assert await refused(cluster, 5) == (
            "OFFSET_DELETED",
            "offset 5 was deleted by retention.ms; the first is 10",
        )


async def test_the_bytes_that_retention_keeps_are_those_that_explain_counts():
    async with explained() as cluster:
        partition = await filled(cluster, 3, retention_ms=-1, retention_bytes=10_000)
        way = next(r for r in (await cluster.explain(0))["goes"] if r["by"] == "retention.bytes")
        left = way["bytes_to_come"]
        assert 0 < left < 10_000
        await cluster.catalog.change_configs(
            "t", lambda configs: {**configs, "retention.bytes": str(10_000 - left + 1)}
        )
        await partition.expire()
        assert partition.log_start_offset == 0
        await cluster.catalog.change_configs(
            "t", lambda configs: {**configs, "retention.bytes": str(10_000 - left)}
        )
        way = next(r for r in (await cluster.explain(0))["goes"] if r["by"] == "retention.bytes")
        assert way["bytes_to_come"] == 0
        await partition.expire()
        assert partition.log_start_offset == 10
        assert await refused(cluster, 5) == (
            "OFFSET_DELETED",
            "offset 5 was deleted by retention.bytes; the first is 10",
        )


async def test_the_time_that_is_named_is_that_of_retention():
    async with explained() as cluster:
        partition = await filled(cluster, 3, retention_ms=DAY_MS)
        way = (await cluster.explain(0))["goes"][0]
        assert way["by"] == "retention.ms"
        wait_s = (way["earliest_ms"] - cluster.clock.now_ms()) / 1000
        await asyncio.sleep(wait_s - 0.01)
        await partition.expire()
        assert partition.log_start_offset == 0
        await asyncio.sleep(0.02)
        await partition.expire()
        assert partition.log_start_offset >= 10


async def test_an_offset_that_compaction_removed_names_the_next_one():
    async with explained() as cluster:
        partition = await cluster.compacted(**KEPT)
        await cluster.fill(partition, b"one", b"two", b"three")
        await cluster.write(partition, (b"0", b"four"))
        await cluster.clean()
        left = await cluster.check(partition)
        assert 0 not in left
        for offset in range(partition.high_watermark):
            following = min((each for each in left if each >= offset), default=None)
            if offset in left:
                found = await cluster.checked(offset)
                assert found["goes"][2]["applies"]
            elif following is not None:
                assert await refused(cluster, offset) == (
                    "OFFSET_COMPACTED",
                    f"offset {offset} was removed by compaction; the next one is {following}",
                )
        states = {(await cluster.explain(each))["segment"]["state"] for each in left}
        assert states & {"cleaned", "merged"}


# -- transactions ----------------------------------------------------------------------------------


async def test_the_state_of_a_transaction_is_open_committed_or_aborted():
    async with explained() as cluster:
        partition = await cluster.topic()
        assert [each.value for each in await sent(partition, part(0), part(0, producer=6))] == [
            0,
            0,
        ]
        assert (await cluster.checked(0))["transaction"]["state"] == "open"
        assert (await marked(partition, commit=False)).value == 0
        assert (await marked(partition, producer=6)).value == 0
        for known in ({}, {"aborted": None, "opened": None}):  # by the leader, and by the log
            states = [
                (await cluster.checked(offset, **known))["transaction"]["state"]
                for offset in range(4)
            ]
            assert states == ["aborted", "committed", "marker", "marker"]
        assert (await cluster.explain(2))["transaction"]["marker"] == "abort"
        assert (await cluster.explain(3))["transaction"]["marker"] == "commit"
        await cluster.sent(partition, batch())
        assert (await cluster.checked(4))["transaction"] is None


async def test_a_transaction_behind_an_open_one_shows_its_own_end():
    async with explained() as cluster:
        partition = await cluster.topic()
        await sent(partition, part(0, producer=6), part(0))
        assert (await marked(partition, commit=False)).value == 0
        assert (await cluster.checked(0))["transaction"]["state"] == "open"
        assert (await cluster.checked(1))["transaction"]["state"] == "aborted"


# -- losses ----------------------------------------------------------------------------------------


def lost_view(offset, end):
    return PartitionView(
        topic=TOPIC,
        partition=0,
        leader=None,
        address=None,
        epoch=None,
        start=None,
        end=end,
        stable=None,
        settings={},
        offset=offset,
        aborted=None,
        opened=None,
    )


async def refused_in(rig, offset, end):
    with pytest.raises(AdminError) as raised:
        await explain(rig.storage(), lost_view(offset, end))
    return raised.value.code, str(raised.value)


async def test_a_loss_names_its_range_and_whether_it_was_accepted(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([1, 2, 1], [1])
        segment = rig.listed()[0]
        rig.forget(segment.ledger, 2)
        for offset in (1, 2):
            code, text = await refused_in(rig, offset, 5)
            assert code == "OFFSET_LOST"
            assert "offsets 1 to 2 are lost; the loss is not accepted" in text
        await rig.accept(1, 2)
        code, text = await refused_in(rig, 1, 5)
        assert code == "OFFSET_LOST"
        assert "offsets 1 to 2 are lost; the loss was accepted on" in text


async def test_a_record_whose_bookies_are_away_is_awaited_and_not_lost(monkeypatch):
    async with loss_rig(monkeypatch) as rig:
        await rig.written([1, 2, 1], [1])
        segment = rig.listed()[0]
        names = rig.members(segment.ledger)
        rig.forget(segment.ledger, 2, on=names[:2])
        rig.lose(names[2])
        code, text = await refused_in(rig, 1, 5)
        assert code == "OFFSET_AWAITED"
        assert names[2] in text


# -- planted mistakes ------------------------------------------------------------------------------


async def test_the_walk_finds_a_bookie_that_counts_as_holding_what_it_denies(monkeypatch):
    async with explained(4) as cluster:
        partition = await filled(cluster)
        found = await cluster.checked(0)
        other = next(iter(set(cluster.files()) - {row["bookie"] for row in found["copies"]}))
        await cluster.roll(partition)
        metadata = await cluster.storage().metadata_of(found["ledger"]["ledger"])
        entry = found["ledger"]["entry"]
        moved = (other, *metadata.bookies_of(entry)[1:])
        monkeypatch.setattr(type(metadata), "bookies_of", lambda self, entry: moved)
        honest = await cluster.checked(0)
        assert [row["has"] for row in honest["copies"]] == ["no", "yes", "yes"]

        def believed(reply):
            return "yes" if reply.status is Status.NO_LEDGER else held(reply)

        monkeypatch.setattr(explain_module, "held", believed)
        with pytest.raises(AssertionError):
            check_explanation(await cluster.explain(0), cluster.files())


async def test_the_walk_finds_a_place_from_a_stale_row(monkeypatch):
    async with explained() as cluster:
        await filled(cluster)
        found = await cluster.checked(0)
        ledger, entry = found["ledger"]["ledger"], found["ledger"]["entry"]
        bookie = cluster.port.every[found["copies"][0]["bookie"]]
        await bookie.storage.checkpoint()
        state = bookie.storage.index.state(ledger)
        place = bookie.storage.index.find(state, entry)
        bookie.storage.index.put(state, entry, place._replace(position=place.position + 8))

        async def believed(*_):
            return True

        monkeypatch.setattr(LogFileCache, "holds", believed)
        with pytest.raises(AssertionError):
            check_explanation(await cluster.explain(0), cluster.files())


@pytest.mark.parametrize(
    ("status", "has"),
    [
        (Status.OK, "unknown"),  # without the entry: the answer was cut
        (Status.NO_ENTRY, "no"),
        (Status.NO_LEDGER, "no"),
        (Status.UNKNOWN_LEDGER_STATE, "lost"),
        (Status.IO_ERROR, "damaged"),
        (Status.UNREACHABLE, "unknown"),
        (Status.OVERLOADED, "unknown"),
        (Status.WRONG_INSTANCE, "unknown"),
    ],
)
def test_only_a_copy_that_was_read_counts(status, has):
    assert held(ReadManyReply(status)) == has
    assert held(ReadManyReply(Status.OK, [b"x"])) == "yes"
