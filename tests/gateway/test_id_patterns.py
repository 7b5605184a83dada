"""Goal: a pattern of ids is matched as in Kafka, and no pattern holds up other clients.

Method: the patterns alone, with a `run` that notes what would run in a thread; and ListTransactions
in Kafka's bytes on virtual time. The recordings of key 66 compare the syntax with Kafka's.
"""

from __future__ import annotations

import pytest
import re2
from kio.schema.errors import ErrorCode as Code

from gateway.transactions.id_patterns import IdPattern, InvalidPattern
from tests.gateway.transaction_rig import LIST, transacting


class Thread:
    """Runs functions at once, and notes on how many names."""

    def __init__(self):
        self.calls = []

    async def run(self, function, names):
        self.calls.append(len(names))
        return function(names)


async def test_a_pattern_matches_whole_ids():
    names = ["pay", "pay-1", "repay", "Ä"]
    assert await IdPattern("pay").matching(names) == ["pay"]
    assert await IdPattern("pay.*").matching(names) == ["pay", "pay-1"]
    assert await IdPattern(r"\pL").matching(names) == ["Ä"]
    assert await IdPattern("x").matching([]) == []


@pytest.mark.parametrize("pattern", ["(", "[a", "*", r"a(?=b)", r"(a)\1", "x{1001}", "a" * 1025])
def test_a_text_that_is_no_pattern_is_refused(pattern):
    with pytest.raises(InvalidPattern):
        IdPattern(pattern)


def test_a_pattern_that_is_too_costly_is_refused():
    classes = "|".join([r"\PL"] * 9)  # compile for milliseconds
    costly = ("(.?.?.?.?.?.?.?.?){900}", r"\pL{1000}", "((x{0,30}){0,30}){0,30}", classes)
    IdPattern("|".join([r"\PL"] * 8))
    for pattern in costly:
        with pytest.raises(InvalidPattern):
            IdPattern(pattern)


async def test_few_short_ids_need_no_thread_and_many_or_long_ones_get_one():
    thread = Thread()
    pattern = IdPattern("(x+x+)+y", thread.run)
    assert await pattern.matching([f"id {number}" for number in range(100)]) == []
    assert thread.calls == []
    assert await pattern.matching(["x" * 32_000] * 3) == []
    assert thread.calls == [3]


async def test_costly_matches_are_cut_into_parts():
    thread = Thread()
    pattern = IdPattern("[^y]{900}y", thread.run)
    assert await pattern.matching(["x" * 7_500] * 2) == []
    assert thread.calls == [1, 1]
    found = "x" * 900 + "y"
    assert await pattern.matching([found, *["x"] * 2_000, found]) == [found, found]
    assert len(thread.calls) > 4


def test_patterns_of_clients_are_not_kept(monkeypatch):
    purged = []
    monkeypatch.setattr(re2, "purge", lambda: purged.append(1))
    IdPattern("a")
    with pytest.raises(InvalidPattern):
        IdPattern("(")
    assert len(purged) == 2


async def test_list_transactions_filters_by_pattern():
    async with transacting() as cluster:
        for name in ("pay-1", "pay-2", "sell"):
            await cluster.init(name)

        async def listed(pattern, **filters):
            fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
            fields |= {"transactional_id_pattern": pattern, **filters}
            reply = await cluster.answer(LIST, 2, **fields)
            return reply.error_code, sorted(
                row.transactional_id for row in reply.transaction_states
            )

        assert await listed(None) == await listed("") == await listed(".*")
        assert await listed("pay-.") == (Code.none, ["pay-1", "pay-2"])
        assert await listed("pay") == (Code.none, [])
        assert await listed("pay-.", state_filters=["Ongoing"]) == (Code.none, [])
        assert await listed("(") == (Code.invalid_regular_expression, [])
