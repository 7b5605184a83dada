"""Goal: a partition learns from the coordinator whether a producer may write to it, with few
requests, and always gets an answer.

Method: the real verifier on virtual time. The coordinators of this gateway and the connections to
others are ports that the test answers; requests are encoded and decoded as on the wire.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest
from kio.schema.errors import ErrorCode as Code

from gateway.core.transaction_effects import Added
from gateway.core.transaction_states import TopicPartition
from gateway.transactions import verifier as verifier_module
from gateway.transactions.verifier import CoordinatorVerifier
from gateway.wire.messages import decode_request, decode_response, encode_response
from tests.gateway.paper_cluster import member

ME, OTHER = 1, 2
KEY, VERSION = 24, 5


class Coordinators:
    """Ids that begin with "mine" are coordinated here, by this object; others at `leaders`."""

    def __init__(self):
        self.leaders = {}
        self.verified, self.added = [], []
        self.codes = []  # answers to `add` before the last one
        self.code = Code.none
        self.go_on = asyncio.Event()
        self.go_on.set()

    def local(self, transactional_id):
        return self if transactional_id.startswith("mine") else Code.not_coordinator

    def leader(self, transactional_id):
        return self.leaders.get(transactional_id, member(OTHER))

    def verify(self, request):
        self.verified.append(request)
        return dict.fromkeys(request.partitions, self.code)

    async def add(self, request):
        self.added.append(request)
        await self.go_on.wait()
        return Added(self.codes.pop(0) if self.codes else self.code)


class Wire:
    def __init__(self):
        self.requests, self.held = [], []
        self.code_of = lambda *_: Code.none
        self.top, self.silent, self.hold = Code.none, False, False

    def ask(self, node_id, key, encode, on_answer):
        assert (node_id, key) == (OTHER, KEY)
        asked = decode_request(KEY, VERSION, bytes(encode(VERSION)), 0).transactions
        self.requests.append(asked)
        reply = None if self.silent else self._reply(asked)
        if self.hold:
            self.held.append((on_answer, reply))
        else:
            asyncio.get_running_loop().call_soon(on_answer, reply)

    def release(self):
        held, self.held = self.held, []
        for on_answer, reply in held:
            on_answer(reply)

    def _reply(self, asked):
        results = [
            {
                "transactional_id": each.transactional_id,
                "topic_results": [
                    {
                        "name": topic.name,
                        "results_by_partition": [
                            {
                                "partition_index": at,
                                "partition_error_code": self.code_of(each.transactional_id, at),
                            }
                            for at in topic.partitions
                        ],
                    }
                    for topic in each.topics
                ],
            }
            for each in asked
        ]
        fields = {"error_code": self.top, "results_by_transaction": results}
        if self.top is not Code.none:
            fields["results_by_transaction"] = []
        body = b"".join(encode_response(KEY, VERSION, 1, fields))
        return decode_response(KEY, VERSION, body).body


class World:
    def __init__(self):
        self.coordinators, self.wire = Coordinators(), Wire()
        self.deleted = set()  # partitions of `t`
        self.verifier = CoordinatorVerifier(ME, self.coordinators, self.wire, self.exists)

    def exists(self, topic, index):
        return topic == "t" and index not in self.deleted

    def ask(self, name="other", index=0, *, producer=5, epoch=1, adds=False):
        return self.verifier.verify(name, producer, epoch, "t", index, adds=adds)


async def test_the_coordinator_of_this_gateway_is_asked_without_a_request():
    w = World()
    assert await w.ask("mine") is Code.none
    (asked,) = w.coordinators.verified
    assert (asked.producer_id, asked.epoch) == (5, 1)
    assert asked.partitions == {TopicPartition("t", 0)}
    assert w.wire.requests == []


async def test_a_producer_that_begins_in_many_partitions_is_added_at_once():
    w = World()
    answers = [w.ask("mine", index, adds=True) for index in range(10)]
    assert await asyncio.gather(*answers) == [Code.none] * 10
    (asked,) = w.coordinators.added
    assert (len(asked.partitions), asked.version) == (10, 2)


@pytest.mark.parametrize("adds", [True, False])
async def test_a_partition_that_does_not_exist_is_not_added_and_others_are(adds):
    w = World()
    w.deleted.add(1)
    answers = await asyncio.gather(*(w.ask("mine", index, adds=adds) for index in range(3)))
    assert answers == [Code.none, Code.unknown_topic_or_partition, Code.none]
    (asked,) = w.coordinators.added if adds else w.coordinators.verified
    assert asked.partitions == {TopicPartition("t", 0), TopicPartition("t", 2)}
    assert await w.ask("mine", 1, adds=adds) is Code.unknown_topic_or_partition
    assert len(w.coordinators.added) + len(w.coordinators.verified) == 1


async def test_partitions_wait_while_earlier_ones_of_the_same_producer_are_added():
    w = World()
    w.coordinators.go_on.clear()
    first = w.ask("mine", 0, adds=True)
    await asyncio.sleep(0.001)
    later = [w.ask("mine", index, adds=True) for index in (1, 2)]
    other = w.ask("mine too", adds=True)
    await asyncio.sleep(0.001)
    assert [len(each.partitions) for each in w.coordinators.added] == [1, 1]
    w.coordinators.go_on.set()
    assert await asyncio.gather(first, *later, other) == [Code.none] * 4
    assert [len(each.partitions) for each in w.coordinators.added] == [1, 1, 2]


async def test_questions_for_one_gateway_share_a_request_and_one_is_in_flight():
    w = World()
    w.wire.hold = True
    answers = [w.ask(f"id-{number}", number) for number in range(3)]
    await asyncio.sleep(0.001)
    answers += [w.ask(f"id-{number}", number + 1) for number in range(3)]
    await asyncio.sleep(0.001)
    assert [len(each) for each in w.wire.requests] == [3]
    w.wire.hold = False
    w.wire.release()
    assert await asyncio.gather(*answers) == [Code.none] * 6
    assert [len(each) for each in w.wire.requests] == [3, 3]


@pytest.mark.parametrize("adds", [False, True])
async def test_a_request_says_whether_partitions_are_added(adds):
    w = World()
    await w.ask(adds=adds)
    ((asked,),) = w.wire.requests
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("other", 5, 1)
    assert asked.verify_only is not adds


async def test_two_producers_of_one_id_are_asked_about_one_after_the_other():
    w = World()
    answers = [w.ask(epoch=1), w.ask(epoch=2)]
    assert await asyncio.gather(*answers) == [Code.none] * 2
    assert [[each.producer_epoch for each in asked] for asked in w.wire.requests] == [[1], [2]]


async def test_each_partition_gets_its_own_answer():
    w = World()
    w.wire.code_of = lambda _, at: Code.transaction_abortable if at else Code.none
    answers = [w.ask(index=0), w.ask(index=1)]
    assert await asyncio.gather(*answers) == [Code.none, Code.transaction_abortable]


async def test_a_partition_that_is_asked_about_twice_is_named_once():
    w = World()
    assert await asyncio.gather(w.ask(), w.ask()) == [Code.none] * 2
    ((asked,),) = w.wire.requests
    assert asked.topics[0].partitions == (0,)


@pytest.mark.parametrize("name", ["mine", "other"])
@pytest.mark.parametrize("adds", [False, True])
async def test_an_error_is_given_as_the_coordinator_gave_it(name, adds):
    w = World()
    code = w.coordinators.code = Code.producer_fenced
    w.wire.code_of = lambda *_: code
    assert await w.ask(name, adds=adds) is code


async def test_a_silent_gateway_and_an_id_without_coordinator_give_retriable_codes():
    w = World()
    w.wire.silent = True
    assert await w.ask() is Code.network_exception
    w.coordinators.leaders["other"] = None
    assert await w.ask() is Code.coordinator_not_available
    w.coordinators.leaders["other"] = member(ME)  # it leads the log, and is still loading
    assert await w.ask() is Code.coordinator_not_available


async def test_an_error_of_the_whole_request_is_that_of_each_partition():
    w = World()
    w.wire.top = Code.cluster_authorization_failed
    assert await w.ask() is Code.cluster_authorization_failed


async def test_protocol_2_waits_a_little_for_the_end_of_the_transaction_before():
    w = World()
    loop = asyncio.get_running_loop()
    w.coordinators.codes = [Code.concurrent_transactions] * 3
    begun_s = loop.time()
    assert await w.ask("mine", adds=True) is Code.none
    assert loop.time() - begun_s == pytest.approx(0.002 + 0.004 + 0.008)


async def test_a_coordinator_of_this_gateway_is_asked_for_longer_than_another_one():
    w = World()
    loop = asyncio.get_running_loop()
    w.coordinators.code = Code.concurrent_transactions
    w.wire.code_of = lambda *_: Code.concurrent_transactions
    for name, s_max in [("mine", 1.0), ("other", 0.1)]:
        begun_s = loop.time()
        assert await w.ask(name, adds=True) is Code.concurrent_transactions
        assert 0.75 * s_max <= loop.time() - begun_s <= s_max + 1e-6


async def test_all_partitions_of_a_busy_transaction_are_asked_about_together():
    w = World()
    w.coordinators.codes = [Code.concurrent_transactions] * 3
    answers = [w.ask("mine", index, adds=True) for index in range(10)]
    assert await asyncio.gather(*answers) == [Code.none] * 10
    assert [len(each.partitions) for each in w.coordinators.added] == [10] * 4


async def test_the_pause_between_two_questions_doubles_up_to_that_of_kafka():
    w = World()
    loop = asyncio.get_running_loop()
    at_ms = []

    async def busy(_request):
        at_ms.append(round(1000 * loop.time()))
        return Added(Code.concurrent_transactions)

    w.coordinators.add = busy
    await w.ask("mine", adds=True)
    pauses = [after - before for before, after in itertools.pairwise(at_ms)]
    assert pauses[:7] == [2, 4, 8, 16, 20, 20, 20]
    assert pauses[7:] == sorted(pauses[7:])
    assert len(pauses) <= 20  # a transaction that does not end costs its coordinator little


async def test_protocol_1_does_not_wait_for_the_transaction_before():
    w = World()
    w.coordinators.code = Code.concurrent_transactions
    assert await w.ask("mine") is Code.concurrent_transactions
    assert len(w.coordinators.verified) == 1


async def test_a_question_that_the_partition_gave_up_is_not_repeated():
    w = World()
    w.coordinators.code = Code.concurrent_transactions
    answer = w.ask("mine", adds=True)
    answer.cancel()
    await asyncio.sleep(1)
    assert len(w.coordinators.added) == 1


async def test_partitions_that_wait_for_one_gateway_are_bounded(monkeypatch):
    monkeypatch.setattr(verifier_module, "_WAITING_MAX", 3)
    w = World()
    w.wire.hold = True
    answers = [w.ask(index=index) for index in range(4)]
    assert await answers[3] is Code.coordinator_not_available
    await asyncio.sleep(0.001)
    w.wire.release()
    assert await asyncio.gather(*answers[:3]) == [Code.none] * 3


async def test_a_coordinator_that_fails_unexpectedly_is_asked_again_by_the_producer(monkeypatch):
    w = World()

    async def failing(request):
        raise RuntimeError("a bug")

    monkeypatch.setattr(w.coordinators, "add", failing)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    assert await w.ask("mine", adds=True) is Code.coordinator_not_available
