"""Goal: a wall clock that jumps forward deletes nothing before the jump has lasted for an hour.

Method: the clock by hand, and real streams whose wall clock is set on virtual time.
"""

from __future__ import annotations

import asyncio

import pytest

from ledger.streams.steady_clock import BELIEVED_AFTER_S, SteadyClock
from tests.gateway.stream_cluster import batch, started_cluster

HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


class HandClock:
    """Both clocks of a machine; `ahead_ms` is what the wall clock was set ahead."""

    def __init__(self):
        self.now_s = 1000.0
        self.ahead_ms = 0

    def now_ms(self):
        return 1_700_000_000_000 + int(self.now_s * 1000) + self.ahead_ms

    def monotonic_s(self):
        return self.now_s


def started():
    clock = HandClock()
    steady = SteadyClock(clock)
    assert steady.now_ms() == clock.now_ms()
    return clock, steady


def test_time_that_passes_on_both_clocks_is_believed():
    clock, steady = started()
    for step_s in (0.001, 5.0, 600.0, 1e6):
        clock.now_s += step_s
        assert steady.now_ms() == clock.now_ms()
        assert steady.monotonic_s() == clock.now_s


def test_a_jump_forward_is_believed_after_an_hour_and_not_before(capsys):
    clock, steady = started()
    clock.ahead_ms = YEAR_MS
    began_s = clock.now_s
    while clock.now_s - began_s < BELIEVED_AFTER_S:
        assert steady.now_ms() == clock.now_ms() - YEAR_MS
        clock.now_s += 60.0
    assert steady.now_ms() == clock.now_ms()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"seconds={YEAR_MS // 1000}" in lines[0]


def test_a_jump_before_the_first_use_is_noticed():
    clock = HandClock()
    steady = SteadyClock(clock)
    clock.ahead_ms = YEAR_MS
    assert steady.now_ms() == clock.now_ms() - YEAR_MS


def test_a_jump_that_is_taken_back_is_never_believed_and_the_next_one_waits_again():
    clock, steady = started()
    for _ in range(3):
        clock.ahead_ms = YEAR_MS
        steady.now_ms()
        clock.now_s += BELIEVED_AFTER_S - 1
        assert steady.now_ms() == clock.now_ms() - YEAR_MS
        clock.ahead_ms = 0
        clock.now_s += 10
        assert steady.now_ms() == clock.now_ms()


def test_a_clock_that_jumps_again_and_again_is_not_believed():
    clock, steady = started()
    for jumps in range(1, 20):
        clock.ahead_ms = jumps * HOUR_MS
        clock.now_s += BELIEVED_AFTER_S / 2
        assert steady.now_ms() == clock.now_ms() - clock.ahead_ms


def test_small_corrections_and_steps_back_are_believed_at_once():
    clock, steady = started()
    for ahead_ms in (9000, 18_000, 0, -HOUR_MS):
        clock.ahead_ms = ahead_ms
        assert steady.now_ms() == clock.now_ms()
    clock.ahead_ms = 0
    assert steady.now_ms() == clock.now_ms() - HOUR_MS


@pytest.mark.parametrize("lasts", [False, True])
async def test_a_clock_a_year_ahead_removes_no_segment_unless_the_jump_lasts(lasts):
    async with started_cluster() as cluster:
        log = await cluster.topic(retention_ms=168 * HOUR_MS)
        for _ in range(6):
            await cluster.sent(log, batch())
            log.stream.roll_soon()
            await asyncio.sleep(3600)
        await cluster.partitions.maintain_once()
        segments = len(log.stream.segments)
        assert segments == 7
        cluster.clock.epoch_ms += YEAR_MS
        await cluster.partitions.maintain_once()
        await asyncio.sleep(3590)
        await cluster.partitions.maintain_once()
        assert len(log.stream.segments) == segments
        if not lasts:
            cluster.clock.epoch_ms -= YEAR_MS
        await asyncio.sleep(20)
        await cluster.partitions.maintain_once()
        assert len(log.stream.segments) == (2 if lasts else segments)
