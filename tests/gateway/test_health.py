"""Goal: a gateway that cannot serve is never ready, and says why.

Method: the context of real handlers, whose phase, lease and bookies the test sets; the planted
mistake is a readiness that forgets the lease.
"""

from __future__ import annotations

import pytest

from gateway.cluster.single_broker import SingleBroker
from gateway.handlers.api import Phase
from gateway.metrics import health, questions
from gateway.metrics.health import NotReady, readiness
from gateway.metrics.process_samples import process_families
from tests.gateway.handler_cluster import Cluster
from tests.gateway.stream_cluster import started_cluster


class WithoutLease(SingleBroker):
    def lease_held(self):
        return False


def context(phase=Phase.SERVING, lease=True, copies=3, wanted=1):
    found = Cluster(topics=topics(wanted)).context
    found.phase = phase
    found.cluster = SingleBroker(3) if lease else WithoutLease(3)
    found.copies = None if copies is None else lambda: copies
    return found


def topics(copies):
    from gateway.config import TopicDefaults

    return TopicDefaults(replication_factor=copies)


def test_a_gateway_that_serves_with_its_lease_and_bookies_is_ready():
    assert readiness(context()) == []
    assert readiness(context(copies=None)) == []


@pytest.mark.parametrize(
    ("more", "reason", "words"),
    [
        ({"phase": Phase.STARTING}, NotReady.STARTING, "starting"),
        ({"phase": Phase.DRAINING}, NotReady.DRAINING, "draining"),
        ({"lease": False}, NotReady.WITHOUT_LEASE, "no lease"),
        ({"copies": 2, "wanted": 3}, NotReady.TOO_FEW_BOOKIES, "2 of 3 copies"),
    ],
)
def test_each_reason_makes_it_not_ready(more, reason, words):
    ctx = context(**more)
    assert health.reasons(ctx) == [reason]
    (sentence,) = readiness(ctx)
    assert words in sentence


def test_without_lease_it_is_never_ready_whatever_else_is_well():
    for phase in Phase:
        assert NotReady.WITHOUT_LEASE in health.reasons(context(phase=phase, lease=False))


def test_all_reasons_are_named_at_once():
    ctx = context(phase=Phase.DRAINING, lease=False, copies=0)
    assert [each.value for each in health.reasons(ctx)] == [
        "draining",
        "without-lease",
        "too-few-bookies",
    ]


async def test_the_question_and_the_metric_agree_with_it():
    async with started_cluster() as cluster:
        ctx = cluster.context
        ctx.groups = Rebalances()
        ctx.phase = Phase.SERVING
        for expected in (True, False):
            answer = await questions.answer({"ask": "health"}, ctx)
            assert (answer["reasons"] == []) is expected
            ready = {each.name: each.samples for each in await process_families(ctx)}
            assert ready["gateway_ready"] == [((), int(expected))]
            ctx.cluster = WithoutLease(0)


class Rebalances:
    """A coordinator without groups."""

    rebalances = 0
