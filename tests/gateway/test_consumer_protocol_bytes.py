"""Goal: subscriptions and assignments of the consumer protocol are read and written as by Kafka.

Method: the bytes of all versions, those of another library, and drawn bytes that mean nothing.
"""

from contextlib import suppress

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocol
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.consumer_protocol import (
    MalformedProtocol,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from tests.gateway.subscription_bytes import subscription

THEIR_SUBSCRIPTION = ConsumerProtocol.METADATA
THEIR_ASSIGNMENT = ConsumerProtocol.ASSIGNMENT


@pytest.mark.parametrize("version", range(5))
def test_a_subscription_has_what_its_version_has(version):
    data = subscription(["t", "u"], (3, 1), 7, version, rack="r")
    found = decode_subscription(data)
    assert (found.version, found.topics) == (version, {"t", "u"})
    assert found.owned == ({"t": {1, 3}} if version >= 1 else {})
    assert found.generation == (7 if version >= 2 else -1)
    assert found.rack_id == ("r" if version >= 3 else None)


def test_a_subscription_of_a_later_version_may_have_more_at_its_end():
    assert decode_subscription(subscription(["t"], (), 7, 9) + b"more").topics == {"t"}


def test_the_bytes_are_those_of_another_library():
    theirs = THEIR_SUBSCRIPTION(0, ["t", "u"], b"user").encode()
    assert decode_subscription(theirs).topics == {"t", "u"}
    found = decode_assignment(THEIR_ASSIGNMENT(0, [("t", [2, 0])], b"user").encode())
    assert (found.partitions, found.has_user_data) == ({"t": {0, 2}}, True)
    ours = encode_assignment([("t", {2, 0}), ("u", {1})], 0)
    read = THEIR_ASSIGNMENT.decode(ours)
    assert read.assignment == [("t", [0, 2]), ("u", [1])]


@pytest.mark.parametrize(("asked", "written"), [(0, 0), (2, 2), (3, 3), (9, 3)])
def test_an_assignment_has_the_version_that_the_member_can_read(asked, written):
    data = encode_assignment([("t", {1})], asked)
    assert int.from_bytes(data[:2], "big") == written
    assert decode_assignment(data).partitions == {"t": {1}}


def test_no_bytes_are_no_partitions():
    assert decode_assignment(b"").partitions == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"meta",
        b"\xff\xff" + subscription(["t"], version=0)[2:],
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00",
        subscription(["t"], (1,), 7)[:-3],
    ],
)
def test_malformed_bytes_are_refused(data):
    with pytest.raises(MalformedProtocol):
        decode_subscription(data)


@given(st.binary(max_size=64), st.integers(0, 64))
def test_drawn_bytes_are_read_or_refused(data, at):
    whole = subscription(["t", "u"], (1, 2), 7, 3, "r")
    mixed = whole[:at] + data
    for decode in (decode_subscription, decode_assignment):
        with suppress(MalformedProtocol):
            assert decode(mixed) is not None
