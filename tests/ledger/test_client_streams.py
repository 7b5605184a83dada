"""Goal: the ends of the streams answer everybody once, whatever comes back, and when; whoever waits
for room gets it. Method: virtual time; the test plays the connection with real frames.
"""

import asyncio

import pytest

from ledger.adapters.links.client_streams import AddStream, ReadStream
from ledger.adapters.links.link_config import LinkConfig
from ledger.bookie.server_streams import InboundWindow
from ledger.ports.bookies import Status
from ledger.wire.bookie_frames import (
    AddStatusRange,
    BadBookieFrame,
    ReadOp,
    ReadRequest,
    ReadResponse,
    decode_add_batch,
    decode_read_requests,
    encode_add_statuses,
    encode_read_responses,
)
from tests.ledger.bookie_rig import KEY

CONFIG = LinkConfig(add_timeout_s=4.0, message_bytes=1000, queue_bytes_max=5000)
OK = Status.OK


class Sender:
    """An add stream whose adds remember what they were told, and when."""

    def __init__(self, config=CONFIG):
        self.stream = AddStream(config)
        self.told = []
        self._loop = asyncio.get_running_loop()

    def add(self, entry, size=100, ledger=7):
        told = self.told

        def on_added(status):
            told.append((entry, status, self._loop.time()))

        self.stream.add(ledger, entry, KEY, [bytes(size)], on_added, False)

    def statuses(self):
        return {entry: status for entry, status, _ in self.told}


async def test_what_is_added_in_one_turn_travels_together_up_to_a_message_full():
    sender = Sender()
    for entry in range(12):
        sender.add(entry)
    messages = [decode_add_batch(await sender.stream.next_message()) for _ in range(2)]
    assert [message.first for message in messages] == [0, 7]
    entries = [add.entry for message in messages for add in message.adds]
    assert entries == list(range(12))


async def test_a_status_of_all_numbers_so_far_takes_no_step_for_those_that_are_answered():
    sender = Sender()
    sender.stream._next = 1 << 40
    for entry in range(3):
        sender.add(entry)
    everything = [((1 << 40) - (1 << 32) + 3, (1 << 32) - 1, OK)] * 1000
    sender.stream.on_message(encode_add_statuses(everything))
    sender.stream.on_message(encode_add_statuses([((1 << 40) + 2, 1, OK)]))
    assert sender.statuses() == dict.fromkeys(range(3), OK)


async def test_an_entry_larger_than_a_message_travels_alone():
    sender = Sender()
    for entry, size in enumerate([100, 3000, 100]):
        sender.add(entry, size)
    sizes = [len(decode_add_batch(await sender.stream.next_message()).adds) for _ in range(3)]
    assert sizes == [1, 1, 1]


async def test_a_full_queue_refuses_and_takes_again_when_there_is_room():
    sender = Sender()
    for entry in range(51):
        sender.add(entry)
    await asyncio.sleep(0)
    assert sender.statuses() == {50: Status.OVERLOADED}
    await sender.stream.next_message()
    sender.add(51)
    await asyncio.sleep(0)
    assert 51 not in sender.statuses()


async def test_answers_find_their_adds_in_any_order_and_count_once():
    sender = Sender()
    for entry in range(5):
        sender.add(entry)
    fenced = Status.FENCED
    sender.stream.on_message(
        encode_add_statuses([AddStatusRange(3, 2, fenced), AddStatusRange(0, 2, OK)])
    )
    sender.stream.on_message(encode_add_statuses([AddStatusRange(0, 5, OK)]))
    assert sender.statuses() == {3: fenced, 4: fenced, 0: OK, 1: OK, 2: OK}
    assert len(sender.told) == 5


async def test_an_answer_to_an_add_that_never_was_breaks_the_rules():
    sender = Sender()
    sender.add(0)
    with pytest.raises(BadBookieFrame):
        sender.stream.on_message(encode_add_statuses([AddStatusRange(0, 2, OK)]))


async def test_one_caller_who_raises_does_not_silence_the_others():
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    sender = Sender()

    def fails(_):
        raise ValueError("the caller's fault")

    sender.stream.add(7, 0, KEY, [b"x"], fails, False)
    sender.add(1)
    sender.stream.on_message(encode_add_statuses([AddStatusRange(0, 2, OK)]))
    assert sender.statuses() == {1: OK}
    assert len(reports) == 1


async def test_a_late_add_is_unreachable_and_its_late_answer_is_ignored():
    sender = Sender()
    sender.add(0)
    await asyncio.sleep(3.0)
    sender.add(1)
    sender.stream.on_message(encode_add_statuses([]))  # it lives, it is only slow
    await asyncio.sleep(1.5)
    assert sender.statuses() == {0: Status.UNREACHABLE}
    [(_, _, told_s)] = sender.told
    assert 4.0 <= told_s <= 4.5
    assert not sender.stream.silent.done()
    sender.stream.on_message(encode_add_statuses([AddStatusRange(0, 2, OK)]))
    assert sender.statuses() == {0: Status.UNREACHABLE, 1: OK}


async def test_a_bookie_that_says_nothing_at_all_is_told_apart_from_a_slow_one():
    sender = Sender()
    for entry in range(20):
        sender.add(entry)
        await asyncio.sleep(0.3)
    await sender.stream.silent
    assert sender.statuses()[0] is Status.UNREACHABLE
    assert 19 not in sender.statuses()


async def test_adds_are_late_each_in_its_time_and_idle_time_does_not_count():
    sender = Sender()
    sender.add(0)
    sender.stream.on_message(encode_add_statuses([AddStatusRange(0, 1, OK)]))
    await asyncio.sleep(100.0)
    sender.add(1)
    await asyncio.sleep(3.9)
    assert sender.statuses() == {0: OK}
    await asyncio.sleep(0.7)
    assert sender.statuses() == {0: OK, 1: Status.UNREACHABLE}


async def test_the_end_answers_everything_and_nobody_is_called_later():
    sender = Sender()
    for entry in range(3):
        sender.add(entry)
    waiting = asyncio.ensure_future(sender.stream.next_message())
    await waiting
    waiting = asyncio.ensure_future(sender.stream.next_message())
    await asyncio.sleep(0)
    sender.stream.fail(Status.UNREACHABLE)
    sender.stream.fail(Status.UNREACHABLE)
    assert await waiting is None
    assert [status for _, status, _ in sender.told] == [Status.UNREACHABLE] * 3
    await asyncio.sleep(10.0)
    assert len(sender.told) == 3


async def test_the_end_ends_the_wait_for_adds_in_flight():
    sender = Sender()
    sender.add(0)
    waiting = asyncio.ensure_future(sender.stream.settled(1000.0))
    await asyncio.sleep(1.0)
    sender.stream.fail(Status.UNREACHABLE)
    began_s = asyncio.get_running_loop().time()
    await waiting
    assert asyncio.get_running_loop().time() == began_s


async def test_what_no_bookie_takes_is_not_sent():
    sender = Sender()
    sender.stream.entry_bytes_max = 1000
    sender.add(0, size=1001)
    sender.add(-1)
    sender.add(1, ledger=-1)
    assert sender.told == []
    await asyncio.sleep(0)
    assert [status for _, status, _ in sender.told] == [Status.BAD_REQUEST] * 3


async def asked(stream, question):
    task = asyncio.ensure_future(stream.ask(question))
    await asyncio.sleep(0)
    return task


async def test_questions_wait_together_and_answers_find_them():
    stream = ReadStream()
    tasks = [await asked(stream, ReadRequest(ReadOp.READ, 0, first=entry)) for entry in range(3)]
    questions = decode_read_requests(await stream.next_message())
    assert [(one.number, one.first) for one in questions] == [(0, 0), (1, 1), (2, 2)]
    answers = [ReadResponse(number, OK, number, [b"b" * number]) for number in (2, 0, 1)]
    stream.on_message(encode_read_responses(answers))
    assert [(await task).lac for task in tasks] == [0, 1, 2]


async def test_who_stops_waiting_is_forgotten_and_the_bookie_is_told():
    stream = ReadStream()
    task = await asked(stream, ReadRequest(ReadOp.WAIT_LAC, 0))
    await stream.next_message()
    task.cancel()
    await asyncio.wait([task])
    assert decode_read_requests(await stream.next_message()) == [ReadRequest(ReadOp.CANCEL, 0)]
    stream.on_message(encode_read_responses([ReadResponse(0, OK)]))  # was under way
    other = await asked(stream, ReadRequest(ReadOp.READ, 0))
    stream.on_message(encode_read_responses([ReadResponse(1, OK, 5)]))
    assert (await other).lac == 5


async def test_the_end_answers_every_question():
    stream = ReadStream()
    task = await asked(stream, ReadRequest(ReadOp.READ, 0))
    stream.fail(Status.WRONG_INSTANCE)
    assert (await task).status is Status.WRONG_INSTANCE
    assert (await stream.ask(ReadRequest(ReadOp.READ, 0))).status is Status.UNREACHABLE


async def test_whoever_waits_for_room_gets_it_in_turn_even_when_others_give_up():
    room = InboundWindow(10)
    room.acquire(20)
    order = []

    async def enter(name):
        await room.wait()
        order.append(name)

    tasks = [asyncio.ensure_future(enter(name)) for name in range(5)]
    await asyncio.sleep(0)
    room.release(5)
    await asyncio.sleep(0)
    assert order == []
    tasks[0].cancel()
    room.release(15)  # wakes the second, who leaves before it runs
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert order == [2, 3, 4]
