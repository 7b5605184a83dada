"""Goal: a member of a group ends in one line, and commits what it printed, also in a rebalance.

Method: a record that aiokafka cannot decode, on a gateway process; and a consumer of this process
in the place of aiokafka's, whose group is rebalanced in the middle.
"""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from gateway.admin.consume import Printer, Wanted
from gateway.admin.consume_batches import PlainRecord
from gateway.admin.consume_group import Member
from gateway.admin.consume_output import raw
from gateway.admin.consume_stdout import Stdout
from gateway.admin.consume_values import plain_bytes
from gateway.wire.client_link import Link
from tests.batches import raw_batch, record, varint
from tests.gateway.admin_commands import invoke
from tests.peers.gateway import Gateway

PLACE = TopicPartition("t", 0)
NO_UTF_8 = varint(1) + varint(2) + b"\xff\xfe" + varint(1) + b"v"


def with_header(headers):
    body = b"\0" + varint(0) + varint(1) + varint(-1) + varint(1) + b"x" + headers
    return varint(len(body)) + body


async def append(broker, batch):
    link = Link("127.0.0.1", broker.port, 30)
    await link.open(5)
    topic = {"name": "t", "partition_data": [{"index": 0, "records": batch}]}
    fields = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": [topic]}
    answer = await link.send(0, fields, 8)
    await link.close()
    assert answer.responses[0].partition_responses[0].error_code.value == 0


@pytest.mark.compat
def test_a_record_that_aiokafka_cannot_decode_is_named(tmp_path):
    with Gateway(tmp_path / "data") as broker:
        assert invoke("topic", "create", "t", bootstrap=broker.bootstrap)[0] == 0
        records = record(0, 0, None, b"good") + with_header(NO_UTF_8)
        asyncio.run(append(broker, raw_batch(record(0, 0, None, b"first"))))
        asyncio.run(append(broker, raw_batch(records, 2)))
        words = ("topic", "consume", "t", "-g", "readers", "-o", "json")
        code, _, errors = invoke(*words, bootstrap=broker.bootstrap)
    assert code == 1
    assert "t/0@2: the record cannot be decoded: " in errors
    assert errors.count("\n") == 1


class Rebalanced:
    """A consumer with a record each time, whose group is rebalanced for the first two commits."""

    def __init__(self, failures):
        self.failures = failures
        self.commits = []
        self.next = 0
        self.positions = iter([IllegalStateError(), 0, IllegalStateError(), 1, 2, 3, 4])

    def assignment(self):
        return frozenset([PLACE])

    async def end_offsets(self, _):
        return {PLACE: 3}

    async def position(self, _):
        found = next(self.positions)
        if isinstance(found, Exception):
            raise found
        return self.next

    async def getmany(self, **_):
        found = [PlainRecord(self.next, 0, 0, None, b"v", ())] if self.next < 3 else []
        self.next += len(found)
        return {PLACE: found}

    async def commit(self, offsets):
        self.commits.append(dict(offsets))
        if len(self.commits) <= self.failures:
            raise CommitFailedError


def read_by(consumer, commit_s):
    async def work():
        printer = Printer(Stdout(), raw(plain_bytes, exact=True), [], None)
        member = Member(consumer, Wanted(["t"]), printer, commit_s)
        member.on_assigned([PLACE])
        await member.read()

    asyncio.run(work())


def test_a_rebalance_only_delays_the_commit():
    consumer = Rebalanced(2)
    read_by(consumer, 0)
    assert consumer.commits == [{PLACE: 1}, {PLACE: 2}, {PLACE: 3}]


def test_a_last_commit_that_fails_is_an_error():
    consumer = Rebalanced(1)
    with pytest.raises(CommitFailedError):
        read_by(consumer, 1000)
    assert consumer.commits == [{PLACE: 3}]
