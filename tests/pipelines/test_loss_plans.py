"""Goal: triggers, archive rounds and errors know accepted losses and those that nobody accepted.

Method: values, without Spark; and slices of a simulated cluster whose bookies lose entries.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipelines.archives.port import ACCEPTED, ArchiveState
from gateway.pipelines.archives.rounds import ArchiveRound, GoneRange, RoundInput, next_round
from gateway.pipelines.direct.losses import (
    LossNotAccepted,
    describe_accepted,
    find_loss,
    not_accepted,
    pass_accepted,
)
from gateway.pipelines.direct.options import parse
from gateway.pipelines.direct.pruning import limit_trigger
from gateway.pipelines.shared.errors import DataLost, JobError
from gateway.pipelines.shared.partitions import OffsetRange, TopicPartition
from gateway.pipelines.shared.storage import ReadStorage
from gateway.pipelines.shared.topics import OffsetBounds
from gateway.topics.configs import LossMode
from ledger.core.accepted_losses import StreamLosses
from ledger.core.gaps import ENTRY_MAX
from ledger.core.loss import EntryLost
from ledger.streams.slice_read import read_slice
from tests.ledger.follow_rig import started_rig
from tests.ledger.test_accepted_losses import lost
from tests.ledger.test_scan import DENSE, scan_of
from tests.ledger.test_scan_losses import entries_of, forget, singly_written

PLACE = TopicPartition("t", 0)


# -- triggers -------------------------------------------------------------------------------------


def losses_of(*ranges: tuple[int, int]) -> StreamLosses:
    return StreamLosses(tuple(lost(1, n, n, *each) for n, each in enumerate(ranges)))


def test_a_trigger_passes_reserved_offsets_at_once() -> None:
    reserved = {PLACE: losses_of((10, 10 + 3 * 2**30 - 1))}
    end = 10 + 3 * 2**30 + 50
    assert limit_trigger(20, {PLACE: 0}, {PLACE: end}, reserved) == {PLACE: end - 40}


def test_a_trigger_ends_before_a_loss_or_goes_past_it() -> None:
    losses = {PLACE: losses_of((10, 19), (30, 39))}
    assert limit_trigger(10, {PLACE: 0}, {PLACE: 50}, losses) == {PLACE: 10}
    assert limit_trigger(10, {PLACE: 10}, {PLACE: 50}, losses) == {PLACE: 30}
    assert limit_trigger(10, {PLACE: 32}, {PLACE: 60}, losses) == {PLACE: 50}
    assert limit_trigger(10, {PLACE: 30}, {PLACE: 40}, losses) == {PLACE: 40}


@given(
    st.sets(st.integers(0, 40), max_size=12),
    st.integers(0, 20),
    st.integers(0, 40),
    st.integers(1, 50),
)
def test_a_trigger_covers_as_many_readable_offsets_as_its_limit(
    edges: set[int], start: int, length: int, limit: int
) -> None:
    places = sorted(edges)
    pairs = list(zip(places[::2], places[1::2], strict=False))
    losses = {PLACE: losses_of(*pairs)}
    end = start + length
    found = limit_trigger(limit, {PLACE: start}, {PLACE: end}, losses)[PLACE]
    gone = {at for low, high in pairs for at in range(low, high + 1)}
    readable = [at for at in range(start, end) if at not in gone]
    assert start <= found <= end
    assert len([at for at in readable if at < found]) == min(limit, len(readable))
    assert found > start or start == end


# -- rounds of the archive ------------------------------------------------------------------------


def plan(
    start: int | None,
    bounds: tuple[int, int],
    *accepted: tuple[int, int],
    most: int = 1000,
    topics: Collection[str] = (),
) -> ArchiveRound:
    state = ArchiveState("1", {} if start is None else {PLACE: start})
    gone = {PLACE: [GoneRange(OffsetRange(*PLACE, *each), ACCEPTED) for each in accepted]}
    given = RoundInput(
        state, {PLACE: OffsetBounds(*bounds)}, most, 7, gone=gone, accept_loss=topics
    )
    return next_round(given)


def test_a_round_ends_before_a_loss_and_the_next_one_begins_with_it() -> None:
    first = plan(0, (0, 100), (40, 60), (60, 70))
    assert first.ranges == (OffsetRange(*PLACE, 0, 40),)
    assert first.lost == ()
    assert not first.refused
    second = plan(40, (0, 100), (40, 60), (60, 70), most=5)
    assert second.ranges == ()
    assert re.search(
        r"30 offsets are lost, .*: t-0\[40\.\.60\), t-0\[60\.\.70\)", str(second.refused["t"])
    )
    second = plan(40, (0, 100), (40, 60), (60, 70), most=5, topics={"t"})
    assert not second.refused
    assert [each.range for each in second.lost] == [
        OffsetRange(*PLACE, 40, 60),
        OffsetRange(*PLACE, 60, 70),
    ]
    assert second.ranges == (OffsetRange(*PLACE, 70, 75),)


def test_a_loss_at_both_ends_of_a_log_is_passed() -> None:
    found = plan(None, (0, 100), (0, 10), (90, 100), topics={"t"})
    assert [each.range for each in found.lost] == [OffsetRange(*PLACE, 0, 10)]
    assert found.ranges == (OffsetRange(*PLACE, 10, 90),)
    found = plan(90, (0, 100), (0, 10), (90, 100), topics={"t"})
    assert [each.range for each in found.lost] == [OffsetRange(*PLACE, 90, 100)]
    assert found.ranges == (OffsetRange(*PLACE, 100, 100),)


def test_deleted_and_lost_offsets_are_told_apart() -> None:
    told = plan(5, (20, 100), (20, 25)).refused["t"]
    assert isinstance(told, DataLost)
    assert str(told).startswith("15 offsets were deleted before they were archived: t-0[5..20)")
    assert "5 offsets are lost, and an operator accepted that: t-0[20..25)" in str(told)
    found = plan(5, (20, 100), (20, 25), topics={"t"})
    assert [each.range[2:] for each in found.lost] == [(5, 20), (20, 25)]


# -- errors and lines of the log ------------------------------------------------------------------


def test_a_loss_is_described_with_all_that_is_known_of_it() -> None:
    told = describe_accepted(lost(1, 3, 4, 20, 39, bookies=1))
    assert told == (
        "ledger 100, entries 3 to 4, complete: bookie-with-a-long-name-0.example.org:3181 denied "
        "(FULLY_AUTHORITATIVE), accepted by ops at 2023-11-14T22:13:20Z"
    )
    reserved = describe_accepted(lost(1, 9, ENTRY_MAX, 90, 2**30, exact=False, bookies=1))
    assert reserved.startswith("at most, ledger 100, all entries from 9 on, ")


def test_each_setting_has_its_own_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    gone = lost(1, 3, 4, 20, 39)
    for fail in (True, False):
        with pytest.raises(LossNotAccepted, match=r"gateway\.loss\.delivery=stop"):
            pass_accepted(PLACE, gone, LossMode.STOP, fail)
        assert pass_accepted(PLACE, gone, LossMode.MARKER, fail) is not None
    assert capsys.readouterr().err == ""
    with pytest.raises(DataLost, match=r"t-0\[20\.\.40\): DATALOSS, ledger 100"):
        pass_accepted(PLACE, gone, LossMode.SKIP, True)
    assert pass_accepted(PLACE, gone, LossMode.SKIP, False) is None
    assert "skipped t-0[20..40): DATALOSS" in capsys.readouterr().err


def test_an_option_with_another_value_is_refused() -> None:
    given = {"metadata": "grpc://127.0.0.1:3181", "path": "t"}
    assert parse(given | {"acceptedLoss": "skip"}).skip_accepted
    assert not parse(given).skip_accepted
    with pytest.raises(JobError, match="acceptedLoss 'fail': must be topic or skip"):
        parse(given | {"acceptedLoss": "fail"})


@pytest.mark.parametrize("entries", [(12,), (12, 13, 14)])
async def test_a_loss_that_nobody_accepted_is_named_with_its_whole_range(
    entries: tuple[int, ...],
) -> None:
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await singly_written(rig, 40, 20)
        found = await entries_of(rig, 1)
        forget(rig, 1, *entries)
        by, scan = await scan_of(rig)
        (piece,) = await scan.cut(0, 40, 10**6)
        with pytest.raises(EntryLost) as raised:
            async for _ in read_slice(by.store, by.client, piece, 300):
                pass
        gap = await find_loss(ReadStorage(by.store, by.client), piece, raised.value.entry)
        error = not_accepted(PLACE, found[12].start, raised.value, gap)
        assert error.code == "DATALOSS"
        whole = OffsetRange(*PLACE, found[12].start, found[entries[-1]].stop)
        assert error.ranges == (whole,)
        assert f"{whole}: DATALOSS, not accepted: ledger {piece.ledger}, entries 12 to" in str(
            error
        )
        offsets = f"{whole.start}-{whole.end - 1}"
        assert f"gateway topic accept-loss t -p 0 --offsets {offsets}" in str(error)


async def test_a_loss_whose_end_is_unknown_is_named_by_its_first_offset() -> None:
    async with started_rig(limits=DENSE, control_ms=100) as rig:
        await singly_written(rig, 40, 20)
        forget(rig, 1, 12)
        by, scan = await scan_of(rig)
        (piece,) = await scan.cut(0, 40, 10**6)
        with pytest.raises(EntryLost) as raised:
            async for _ in read_slice(by.store, by.client, piece, 300):
                pass
        by.port.stalled = set(rig.world.bookies)
        gap = await find_loss(ReadStorage(by.store, by.client), piece, raised.value.entry)
        assert gap is None
        error = not_accepted(PLACE, 17, raised.value, gap)
        assert error.ranges == (OffsetRange(*PLACE, 17, 18),)
        assert "t-0 from offset 17 on: DATALOSS, not accepted" in str(error)
        assert "gateway topic gaps t -p 0" in str(error)
