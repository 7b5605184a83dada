"""Goal: there is one auditor, and another one soon after it is gone.

Method: candidates as sessions on one simulated tree; sessions end, replies are lost.
"""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from ledger.repair.election import AuditorElection, current_auditor
from tests.sim.metadata import MetadataFaults, MetadataTree, SimMetadata


class Candidate:
    def __init__(self, tree, name, faults=None):
        self.name = name
        self.session = SimMetadata(tree, faults)
        self.election = AuditorElection(self.session, name)
        self.leading = False
        self.terms = 0
        self.task = asyncio.create_task(self.election.run(self.lead))

    async def lead(self):
        self.leading = True
        self.terms += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.leading = False

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def leaders(candidates):
    return [one.name for one in candidates if one.leading]


@asynccontextmanager
async def new_tree():
    yield MetadataTree()


async def test_the_first_candidate_leads_and_the_others_wait():
    async with new_tree() as tree:
        candidates = [Candidate(tree, f"c{number}") for number in range(4)]
        await asyncio.sleep(1)
        assert leaders(candidates) == ["c0"]
        assert await current_auditor(candidates[3].session) == "c0"
        for one in candidates:
            await one.stop()


async def test_when_the_leader_stops_the_next_one_leads_at_once():
    async with new_tree() as tree:
        candidates = [Candidate(tree, f"c{number}") for number in range(3)]
        await asyncio.sleep(1)
        await candidates[0].stop()
        await asyncio.sleep(0.01)
        assert leaders(candidates) == ["c1"]
        for one in candidates:
            await one.stop()
        assert await current_auditor(candidates[1].session) is None


async def test_a_leader_whose_session_ended_gives_up_and_stands_again_at_the_end():
    async with new_tree() as tree:
        candidates = [Candidate(tree, f"c{number}") for number in range(3)]
        await asyncio.sleep(1)
        tree.end_session(candidates[0].session.session)
        await asyncio.sleep(1)
        assert leaders(candidates) == ["c1"]
        await candidates[1].stop()
        await candidates[2].stop()
        await asyncio.sleep(1)
        assert leaders(candidates) == ["c0"]
        assert candidates[0].terms == 2
        await candidates[0].stop()


async def test_a_waiting_candidate_that_goes_leaves_the_others_in_order():
    async with new_tree() as tree:
        candidates = [Candidate(tree, f"c{number}") for number in range(3)]
        await asyncio.sleep(1)
        await candidates[1].stop()
        await asyncio.sleep(0.01)
        assert leaders(candidates) == ["c0"]
        await candidates[0].stop()
        await asyncio.sleep(0.01)
        assert leaders(candidates) == ["c2"]
        await candidates[2].stop()


async def test_a_vote_whose_reply_was_lost_counts_as_ones_own():
    async with new_tree() as tree:
        faults = MetadataFaults(random.Random(1), reply_lost=0.5)
        only = Candidate(tree, "only", faults)
        await asyncio.sleep(120)
        assert only.leading
        votes = [path for path in tree.nodes if "/V_" in path]
        assert len(votes) == 1
        await only.stop()


async def test_while_the_store_is_silent_everybody_stays_what_it_was():
    async with new_tree() as tree:
        first, second = Candidate(tree, "c0"), Candidate(tree, "c1")
        await asyncio.sleep(1)
        first.session.faults = second.session.faults = MetadataFaults(random.Random(1), unsent=1.0)
        await asyncio.sleep(60)
        assert leaders([first, second]) == ["c0"]
        for one in (first, second):
            one.session.faults = None
            await one.stop()


async def test_an_error_of_the_leading_itself_comes_out():
    async def lead():
        raise ValueError("a mistake of ours")

    with pytest.raises(ValueError, match="a mistake of ours"):
        await AuditorElection(SimMetadata(MetadataTree()), "c0").run(lead)
