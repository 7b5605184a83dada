"""Goal: the cleaner process answers, ends with its gateway, and is started again after a kill.

Method: the real child process, its pipes, and the memory that it shares.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest

from gateway.cleaning import frames
from gateway.cleaning import process as cleaner_process
from gateway.cleaning.frames import Kind
from gateway.cleaning.process import CleanerEnded, CleanerProcess
from gateway.cleaning.slots import SLOT_BYTES, SLOTS
from gateway.core.cleaning_results import NOT_FULL, PoisonedBatch
from gateway.core.partition_transactions import AbortedTransaction
from tests.gateway.captured import without_clients
from tests.gateway.cleaning_log import ROOM, at_offset, keyed_batch

pytestmark = [pytest.mark.real_loop, pytest.mark.process]

BATCH = keyed_batch([(b"a", b"one"), (b"a", b"two"), (b"b", b"three")])


def above_a_slot():
    """Return a batch of 3,000 records that is longer than a slot of the shared memory."""
    batch = keyed_batch([(b"%d" % at, os.urandom(1000)) for at in range(3000)])
    assert len(batch) > SLOT_BYTES
    return batch


async def mapped(process):
    await process.ask(Kind.BEGIN_MAP, frames.MAP.pack(ROOM, 0, 1000))
    await process.ask(Kind.BEGIN_SEGMENT, frames.encode_segment(0, 5, []))
    return frames.OFFSET.unpack(await process.ask(Kind.MAP_BATCHES, BATCH))[0]


async def test_a_segment_goes_through_the_process():
    process = CleanerProcess()
    try:
        await process.start()
        assert await mapped(process) == NOT_FULL
        await process.ask(Kind.BEGIN_FILTER, frames.FILTER.pack(0, 0))
        aborted = [AbortedTransaction(7, 1, 2, 3)]
        await process.ask(Kind.BEGIN_SEGMENT, frames.encode_segment(0, 5, aborted))
        (one,) = frames.decode_batches(await process.ask(Kind.FILTER_BATCHES, BATCH))
        assert one.offsets == 3
        end = frames.decode_end(await process.ask(Kind.END_SEGMENT))
        assert [each.offsets for each in end.batches] == [2]
        assert (end.changed, end.records_read, end.records_kept) == (True, 3, 2)
    finally:
        await process.stop()
    assert process.pid is None


async def test_a_batch_that_cannot_be_read_leaves_the_process_at_work():
    process = CleanerProcess()
    try:
        await process.start()
        assert await mapped(process) == NOT_FULL
        with pytest.raises(PoisonedBatch, match=r"offset 0 cannot be cleaned: .*CRC"):
            await process.ask(Kind.MAP_BATCHES, BATCH[:-1] + b"x")
        assert await mapped(process) == NOT_FULL
    finally:
        await process.stop()


async def test_a_killed_process_is_reported_and_started_again():
    process = CleanerProcess()
    try:
        await process.start()
        first = process.pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(CleanerEnded):
            while True:
                await mapped(process)
        await process.start()
        assert process.pid != first
        assert await mapped(process) == NOT_FULL
    finally:
        await process.stop()


async def test_the_process_has_a_lower_priority_than_the_gateway():
    process = CleanerProcess()
    try:
        await process.start()
        await mapped(process)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        await process.stop()


async def test_a_cancelled_request_ends_the_process_so_that_no_reply_is_mistaken():
    process = CleanerProcess()
    try:
        await process.start()
        asking = asyncio.ensure_future(mapped(process))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert process.pid is None
        await process.start()
        assert await mapped(process) == NOT_FULL
    finally:
        await process.stop()


async def test_a_batch_longer_than_the_shared_memory_goes_through_the_pipes():
    process = CleanerProcess()
    payload = above_a_slot()
    try:
        await process.start()
        await process.ask(Kind.BEGIN_MAP, frames.MAP.pack(ROOM, 0, 3000))
        await process.ask(Kind.BEGIN_SEGMENT, frames.encode_segment(0, 3000, []))
        half = len(payload) // 2
        parts = payload[:half], payload[half:]
        assert frames.OFFSET.unpack(await process.ask(Kind.MAP_BATCHES, *parts))[0] == NOT_FULL
        await process.ask(Kind.BEGIN_FILTER, frames.FILTER.pack(0, 0))
        await process.ask(Kind.BEGIN_SEGMENT, frames.encode_segment(0, 3000, []))
        (one,) = frames.decode_batches(await process.ask(Kind.FILTER_BATCHES, *parts))
        assert one.data == payload
    finally:
        await process.stop()


async def test_several_requests_are_answered_in_order_and_their_replies_stay():
    process = CleanerProcess()
    sent = [keyed_batch([(b"key", b"%d" % at)], base=at) for at in range(SLOTS)]
    try:
        await process.start()
        await process.ask(Kind.BEGIN_MAP, frames.MAP.pack(ROOM, 0, 1000))
        await process.ask(Kind.BEGIN_FILTER, frames.FILTER.pack(0, 0))
        await process.ask(Kind.BEGIN_SEGMENT, frames.encode_segment(0, SLOTS, []))
        replies = await asyncio.gather(*(process.ask(Kind.FILTER_BATCHES, each) for each in sent))
        assert [frames.decode_batches(each)[0].data for each in replies] == sent
    finally:
        await process.stop()


async def test_batches_longer_than_the_shared_memory_are_answered_in_order_together():
    process = CleanerProcess()
    sent = [at_offset(above_a_slot(), 3000 * at) for at in range(SLOTS)]
    try:
        await process.start()
        await process.ask(Kind.BEGIN_MAP, frames.MAP.pack(ROOM, 0, 9000))
        await process.ask(Kind.BEGIN_FILTER, frames.FILTER.pack(0, 0))
        await process.ask(Kind.BEGIN_SEGMENT, frames.encode_segment(0, 9000, []))
        replies = await asyncio.gather(*(process.ask(Kind.FILTER_BATCHES, each) for each in sent))
        assert [frames.decode_batches(each)[0].data for each in replies] == sent
    finally:
        await process.stop()


async def test_requests_under_way_fail_with_their_process_and_leave_the_next_one_alone(monkeypatch):
    monkeypatch.setattr(cleaner_process, "_PAUSE_S_FIRST", 0.01)
    process = CleanerProcess()
    try:
        await process.start()
        assert await mapped(process) == NOT_FULL
        os.kill(process.pid, signal.SIGSTOP)
        asking = [asyncio.ensure_future(process.ask(Kind.DROP_MARKS)) for _ in range(SLOTS)]
        await asyncio.sleep(0)
        os.kill(process.pid, signal.SIGKILL)
        failed = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(each) for each in failed] == SLOTS * [CleanerEnded]
        assert process._pause_s == 0.01
        assert "ended by signal 9" in str(failed[0])
        await process.start()
        assert await mapped(process) == NOT_FULL
    finally:
        await process.stop()


async def test_a_process_with_a_large_reply_that_nobody_reads_ends():
    process = CleanerProcess()
    payload = above_a_slot()
    await process.start()
    await mapped(process)
    await process.ask(Kind.BEGIN_FILTER, frames.FILTER.pack(0, 0))
    await process.ask(Kind.BEGIN_SEGMENT, frames.encode_segment(0, 3000, []))
    stdout = process._child.stdout
    asking = asyncio.ensure_future(process.ask(Kind.FILTER_BATCHES, payload))
    while not stdout._buffer:
        await asyncio.sleep(0)
    asking.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(asking, return_exceptions=True)
    assert process.pid is None


@asynccontextmanager
async def standing_still(monkeypatch):
    """Yield a process that has answered, stands still now, and has 50 ms for each answer."""
    process = CleanerProcess()
    try:
        await process.start()
        assert await mapped(process) == NOT_FULL
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(cleaner_process, "_ANSWER_S_MAX", 0.05)
        yield process
    finally:
        await process.stop()


async def test_a_process_that_does_not_answer_is_ended(monkeypatch):
    async with standing_still(monkeypatch) as process:
        with pytest.raises(CleanerEnded, match="did not answer"):
            await mapped(process)
        assert process.pid is None


async def test_the_process_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text("raise SystemExit('another release')")
    monkeypatch.chdir(tmp_path)
    process = CleanerProcess()
    try:
        await process.start()
        assert await mapped(process) == NOT_FULL
    finally:
        await process.stop()


async def test_a_process_without_numpy_says_so_and_prints_no_traceback(
    tmp_path, monkeypatch, capfd
):
    missing = "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')"
    (tmp_path / "numpy.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = CleanerProcess()
    await process.start()
    reason = "^the cleaner process cannot work: No module named 'numpy'$"
    with pytest.raises(CleanerEnded, match=reason):
        await process.ask(Kind.DROP_MARKS)
    assert process.pid is None
    told = capfd.readouterr()
    assert (told.out, without_clients(told.err)) == ("", "")


async def test_memory_that_cannot_be_shared_is_named(monkeypatch):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    with pytest.raises(CleanerEnded, match=r"memory cannot be shared.*Operation not permitted"):
        await CleanerProcess().start()


async def test_each_request_has_the_whole_time_for_its_answer(monkeypatch):
    async with standing_still(monkeypatch) as process:
        asking = [asyncio.ensure_future(process.ask(Kind.DROP_MARKS)) for _ in range(SLOTS)]
        failed = await asyncio.gather(*asking, return_exceptions=True)
        assert ["did not answer" in str(each) for each in failed] == [True, False, False]
